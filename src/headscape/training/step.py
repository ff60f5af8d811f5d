"""The gradient of one update, and the validation loss.

The windows of a step are processed in micro-batches of at most `batch_size` windows of full length.
The loss is the mean cross-entropy over every target of the step, in nats. A micro-batch is weighted
by its share of the windows, so the result does not depend on how they are split.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from headscape.call.definition import AttentionCall
from headscape.gpt2 import GPT2
from headscape.kernels import attend
from headscape.training.config import TrainConfig
from headscape.training.objective import Data, objective_of
from headscape.training.parallel import gradient_sync, reshard
from headscape.training.world import World


@dataclass(frozen=True, kw_only=True)
class Learner:
    """A model in training, with everything a step needs except the tokens."""

    config: TrainConfig
    world: World
    model: GPT2
    """The model; its parameters may be sharded over processes."""
    module: nn.Module
    """What is called in training: the model, its DDP wrapper, compiled or not."""

    def gradient(self, windows: Int[Tensor, "b t"]) -> float:
        """Accumulate gradients over this process's windows; return their share of the mean loss."""
        total = torch.zeros((), dtype=torch.float64, device=self.world.device)
        parts = list(self._micro_batches(windows))
        for index, part in enumerate(parts):
            with gradient_sync(self.module, now=index == len(parts) - 1):
                loss = self._loss(part) * (len(part) / len(windows))
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return float(total) / self.world.size

    def attention_path(self, windows: Int[Tensor, "b t"]) -> dict[str, object]:
        """Return the attention path of the first layer in training, and why others were skipped."""
        taken: list[attend.Choice] = []

        def watch(layer: int, inputs: AttentionCall) -> None:
            if layer == 0:
                taken.append(attend.choose(inputs, self.config.path))

        with self._autocast():
            self.model(windows[:1, :-1].to(self.world.device), path=self.config.path, watch=watch)
        reshard(self.model)
        return {"path": taken[0].path, "passed_over": taken[0].passed_over}

    @torch.no_grad()
    def validation(self, data: Data) -> float:
        """Return the mean loss over the validation windows, which the processes share."""
        held_out = torch.from_numpy(data.held_out)
        count, world = len(held_out), self.world
        # A process without a window repeats one: a sharded forward pass needs all processes.
        rounds = -(-count // world.size)
        mine = torch.arange(rounds) * world.size + world.rank
        weight = (mine < count).double()
        losses = [
            self._loss(part, reduction="none").double().cpu()
            for part in self._micro_batches(held_out[mine.clamp(max=count - 1)])
        ]
        reshard(self.model)
        (total,) = world.sums(float((torch.cat(losses).view(rounds, -1).mean(1) * weight).sum()))
        return total / count

    def _micro_batches(self, windows: Int[Tensor, "b t"]) -> Iterator[Int[Tensor, "b t"]]:
        tokens = self.config.batch_size * self.config.context_length
        yield from torch.split(windows, max(1, tokens // (windows.shape[1] - 1)))

    def _loss(self, windows: Int[Tensor, "b t"], reduction: str = "mean") -> Float[Tensor, "..."]:
        windows = windows.to(self.world.device)
        inputs, targets, weights = objective_of(self.config.corpus).targets(windows)
        with self._autocast():
            logits = self.module(inputs, path=self.config.path).flatten(0, 1)
            if weights is None:
                return F.cross_entropy(logits, targets.flatten(), reduction=reduction)
            losses = weights.flatten() * F.cross_entropy(
                logits, targets.flatten(), reduction="none"
            )
            return losses.mean() if reduction == "mean" else losses

    def _autocast(self) -> AbstractContextManager[object]:
        precision = self.config.precision
        if precision == "auto":
            precision = "bf16" if self.world.device.type == "cuda" else "fp32"
        if precision == "fp32":
            return nullcontext()
        return torch.autocast(self.world.device.type, torch.bfloat16)
