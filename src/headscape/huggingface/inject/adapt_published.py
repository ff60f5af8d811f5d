"""A transformers model with a different position encoding, by self-distillation.

training/adapt.py says how. The old model and its copy are in memory, both on our attention while
the copy learns, so that they get the same masks. In the first part the old model runs, and after
each of its attention modules that of the copy runs on the same arguments: what the old norm made of
the layer's input.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt
from torch import Tensor, nn

from headscape.call.definition import AttentionCall
from headscape.encodings import Encoding
from headscape.encodings.registry import parse
from headscape.errors import InputError
from headscape.huggingface.attend.attention_function import set_attention
from headscape.huggingface.export.write_export import write_tokenizer
from headscape.huggingface.inject.injected_encoding import argument_names, encoding_of
from headscape.huggingface.inject.set_encoding import find_sites, set_encoding
from headscape.io import files
from headscape.models.loaded import eval_mode
from headscape.models.transformers.declared import stored_folder
from headscape.models.transformers.open_published import quiet
from headscape.models.transformers.published_model import PublishedModel
from headscape.training.adapt import Adaptation, Pair, Progress, learn

LENGTH = 512
"""Tokens in a window by default, if the model was trained on as many."""
LR = 2e-4
"""Largest learning rate of a published model by default."""
TOKENIZER = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt",
    "spiece.model", "chat_template*", "generation_config.json",
)  # fmt: skip
"""Files that a saved model takes from the old one's folder; a GGUF file contains its own."""


class PublishedPair(Pair):
    """Two transformers models of one class; windows go through them one at a time."""

    def __init__(self, old: PublishedModel, new: Any) -> None:
        self.published = old
        (self.theirs,), (self.mine,) = (find_sites(each).stacks for each in (old.model, new))
        super().__init__(old.model, new, len(self.mine))

    def attend(self, tokens: Int[Tensor, "b t"], watch: Callable[[Tensor, Tensor], None]) -> None:
        """Run the old model, and after each attention module the new one on its arguments."""
        with ExitStack() as stack:
            for theirs, mine in zip(self.theirs, self.mine, strict=True):

                def hook(_: Any, args: Any, given: Any, wanted: Any, mine: Any = mine) -> None:
                    with torch.enable_grad():
                        watch(mine(*args, **given)[0], wanted[0])

                stack.callback(theirs.register_forward_hook(hook, with_kwargs=True).remove)
            with torch.no_grad():
                self.published.body(tokens, use_cache=False)

    def logits(self, model: nn.Module, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t v"]:
        """Run a model."""
        found: Tensor = model(tokens, use_cache=False).logits
        return found

    def layer_calls(
        self,
        tokens: Int[Tensor, "b t"],
        watch: Callable[[Encoding, AttentionCall, Tensor], None],
    ) -> None:
        """Capture the old model, with the input of every attention module."""
        rows: dict[int, Tensor] = {}

        def heard(layer: int, call: AttentionCall) -> None:
            encoding = encoding_of(self.mine[layer])
            assert encoding is not None
            watch(encoding, call, rows[layer])

        with ExitStack() as stack:
            for layer, theirs in enumerate(self.theirs):
                name = argument_names(theirs)[0]

                def hook(
                    _: Any, args: Any, given: Any, layer: int = layer, name: str = name
                ) -> None:
                    rows[layer] = args[0] if args else given[name]

                stack.callback(theirs.register_forward_pre_hook(hook, with_kwargs=True).remove)
            self.published.observe(tokens, range(self.layers), heard)


def adapt_published(
    old: PublishedModel,
    tokens: UInt[np.ndarray, " n"] | Int[np.ndarray, " n"],
    options: Adaptation,
    progress: Progress = lambda _, __, ___: None,
    checkpoint: Path | None = None,
) -> Any:
    """Return a transformers model with a different encoding that learned from `old`.

    It takes the models of `set_encoding` that predict the next token. `old` does not change. The
    arguments are those of `adapt`.
    """
    old.need_next_token()
    find_sites(old.model)
    parse(options.encoding)
    if old.stream is not None or {x.dtype for x in old.model.parameters()} != {torch.float32}:
        raise InputError(f"{old.spec.name} cannot learn: open it in float32 and not offloaded.")
    others = {x.device.type for x in old.model.parameters()} - {"cpu"}
    if others:
        raise InputError(
            f"{old.spec.name} cannot learn on {', '.join(sorted(others))}, only on the CPU: open "
            f"it without device and device_map."
        )
    options = options.filled_in(old.spec.train_length, lr=LR, length=LENGTH)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        new = _plain_copy(old.model)
        set_encoding(new, options.encoding)
    for parameter in new.parameters():
        parameter.requires_grad_()
    with eval_mode(old.model), _our_attention(old.model):
        learn(PublishedPair(old, new), tokens, options, progress, checkpoint)
    return new


def _plain_copy(model: Any) -> Any:
    """Return a copy in eval mode; one of a GGUF file's weights, which are plain, can be saved."""
    new = copy.deepcopy(model).eval()
    new.is_quantized = False
    for owner, name in ((new, "hf_quantizer"), (new.config, "quantization_config")):
        if hasattr(owner, name):
            delattr(owner, name)
    return new


@contextmanager
def _our_attention(model: Any) -> Iterator[None]:
    """Run a model on our attention."""
    before = model.config._attn_implementation  # noqa: SLF001
    set_attention(model)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def save_adapted(new: Any, old: PublishedModel, folder: Path) -> Path:
    """Write what `adapt_published` returned, with the old tokenizer."""
    import transformers

    source = stored_folder(old)
    with files.new_folder(folder) as part, quiet(transformers):
        new.save_pretrained(part)
        if source is not None:
            for file in (each for pattern in TOKENIZER for each in source.glob(pattern)):
                if file.is_file() and not (part / file.name).exists():
                    (part / file.name).write_bytes(file.read_bytes())
        elif old.tokenizer is not None:
            write_tokenizer(old.tokenizer, part, new.config.max_position_embeddings)
    return folder
