"""One update's gradient, and the validation loss.

The windows of a step go through the model in passes of at most `batch` windows of full length.
The loss is the mean cross-entropy over every token of the step, in nats; a pass counts by its
share of the windows, so the sum over passes and processes is that mean however they are cut.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from headscape.attention import attend
from headscape.attention.reference import AttentionInputs
from headscape.gpt2 import GPT2
from headscape.tasks.task_batches import weights
from headscape.train.config.train_config import TrainConfig
from headscape.train.data import TASK, Data
from headscape.train.distributed.parallel import exchange, rest
from headscape.train.distributed.world import World


@dataclass(frozen=True, kw_only=True)
class Learner:
    """A model in training, and everything that a step needs besides the tokens."""

    config: TrainConfig
    """The run's."""
    world: World
    """The processes."""
    model: GPT2
    """The model; its parameters may be cut over processes."""
    module: nn.Module
    """The model as it is called: spread over processes, compiled."""

    def gradient(self, windows: Int[Tensor, "b t"]) -> float:
        """Add up gradients over this process's windows; gives their share of the mean loss."""
        total = torch.zeros((), dtype=torch.float64, device=self.world.device)
        passes = list(self._passes(windows))
        for index, part in enumerate(passes):
            with exchange(self.module, now=index == len(passes) - 1):
                loss = self._loss(part) * (len(part) / len(windows))
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return float(total) / self.world.size

    def attention_path(self, windows: Int[Tensor, "b t"]) -> dict[str, object]:
        """Which attention path the first layer takes in training, and why not those before it."""
        taken: list[attend.Choice] = []

        def watch(layer: int, inputs: AttentionInputs) -> None:
            if layer == 0:
                taken.append(attend.choose(inputs, self.config.path))

        with self._autocast():
            self.model(windows[:1, :-1].to(self.world.device), path=self.config.path, watch=watch)
        rest(self.model)
        return {"path": taken[0].path, "passed_over": taken[0].passed_over}

    @torch.no_grad()
    def validation(self, data: Data) -> float:
        """The mean loss over the validation windows, which the processes share."""
        held_out = torch.from_numpy(data.held_out)
        count, world = len(held_out), self.world
        # A process without a window of its own repeats one, because a sharded pass takes them all.
        rounds = -(-count // world.size)
        mine = torch.arange(rounds) * world.size + world.rank
        weight = (mine < count).double()
        losses = [
            self._loss(part, reduction="none").double().cpu()
            for part in self._passes(held_out[mine.clamp(max=count - 1)])
        ]
        rest(self.model)
        (total,) = world.sums(float((torch.cat(losses).view(rounds, -1).mean(1) * weight).sum()))
        return total / count

    def _passes(self, windows: Int[Tensor, "b t"]) -> Iterator[Int[Tensor, "b t"]]:
        room = self.config.batch * self.config.length
        yield from torch.split(windows, max(1, room // (windows.shape[1] - 1)))

    def _loss(self, windows: Int[Tensor, "b t"], reduction: str = "mean") -> Float[Tensor, "..."]:
        windows = windows.to(self.world.device)
        with self._autocast():
            logits = self.module(windows[:, :-1], path=self.config.path)
            target = windows[:, 1:].flatten()
            if not self.config.corpus.startswith(TASK):
                return F.cross_entropy(logits.flatten(0, 1), target, reduction=reduction)
            weight = torch.from_numpy(weights(windows.cpu().numpy())).to(target.device)
            losses = F.cross_entropy(logits.flatten(0, 1), target, reduction="none")
            losses = weight.flatten() * losses
            return losses.mean() if reduction == "mean" else losses

    def _autocast(self) -> AbstractContextManager[object]:
        precision = self.config.precision
        if precision == "auto":
            precision = "bf16" if self.world.device.type == "cuda" else "fp32"
        if precision == "fp32":
            return nullcontext()
        return torch.autocast(self.world.device.type, torch.bfloat16)
