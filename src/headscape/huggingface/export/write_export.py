"""Write one of our models as a folder that transformers loads.

    config.json, model.safetensors, generation_config.json      what AutoModelForCausalLM reads
    tokenizer.json, tokenizer_config.json                       what AutoTokenizer reads
    headscape_tokenizer.json                                    our description of the tokenizer
    README.md, heads.png                                        the model card
    modeling_headscape.py                                       with_code: the model as one file

The written folder is loaded by transformers and its logits are compared with the model's own before
it gets its name, so a folder exists only if it is right.
"""

from pathlib import Path
from typing import Literal

import torch

from headscape.encodings.learned import Learned
from headscape.encodings.rope import RoPE
from headscape.errors import InputError, at_least
from headscape.gpt2 import GPT2
from headscape.huggingface.export.export_files import write_both_tokenizers, write_code, write_model
from headscape.huggingface.export.model_card import Card, losses, training, write_picture
from headscape.huggingface.export.model_card import evaluation as evaluation_of
from headscape.huggingface.export.stock_architecture import CLASSES, choose
from headscape.io import atomic
from headscape.io.progress import SlowBar
from headscape.models.gpt2_model import GPT2Model
from headscape.models.load import load
from headscape.models.loaded import LoadedModel
from headscape.models.stretched import StretchedModel

CHECK_TOKENS = 24
TOLERANCE = 1e-4
"""Largest difference of logits, relative to the largest logit; RoPE's angles are float32 there."""


def export(
    model: "LoadedModel | GPT2 | str | Path",
    out: Path | str,
    *,
    to: str = "hf",
    architecture: Literal["auto", "gpt2", "gpt_neox", "headscape"] | str = "auto",
    with_code: bool = False,
    max_positions: int | None = None,
    evaluation: Path | str | None = None,
    step: int | None = None,
) -> Path:
    """Write a model to a new folder that AutoModelForCausalLM loads; return the folder.

    model          a run's folder, a loaded model or a GPT2
    to             hf, for Hugging Face transformers
    architecture   auto takes GPT2LMHeadModel or GPTNeoXForCausalLM where that is the same function,
                   and otherwise headscape: our own class, which `import headscape.huggingface`
                   registers
    with_code      also write that class and its encodings as one file, for trust_remote_code
    max_positions  what config.json says as max_position_embeddings; default the trained context
                   length, times the factor of a stretched RoPE
    evaluation     a folder of `evaluate` for the model card; default one beside the run
    step           which checkpoint of a run

    Example:
        >>> import headscape as hs
        >>> gpt2 = hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257)
        >>> folder = hs.export(hs.load(gpt2, tokenizer="bytes"), "exported")
        >>> hs.load(folder)
        <ALiBi: 2 layers x 12 heads, width 192, context 1024, untrained>
    """
    if to != "hf":
        raise InputError(f"export writes to hf (Hugging Face transformers), got {to!r}.")
    out = Path(out)
    atomic.empty_target(out)
    opened = _ours(load(model, step=step) if isinstance(model, str | Path) else load(model))
    gpt2 = opened.gpt2
    if not gpt2.config.causal:
        raise InputError(
            "this model is bidirectional, so it cannot be exported as a causal language model."
        )
    positions = _positions(gpt2, max_positions)
    chosen, settings = choose(gpt2, architecture, positions)
    if with_code and chosen != "headscape":
        raise InputError(
            f"{opened.spec.name} is exported as {CLASSES[chosen]}, which needs no code: leave "
            f"with_code out, or choose the architecture headscape."
        )
    table = evaluation_of(opened, evaluation)
    size = sum(value.numel() * value.element_size() for value in gpt2.tensors().values())
    with atomic.new_folder(out) as part, SlowBar("exporting", 2 * size) as bar:
        write_model(opened, part, chosen, settings, positions, bar.advance)
        if with_code:
            write_code(part, gpt2)
        if opened.tokenizer is not None:
            write_both_tokenizers(opened, part, positions)
        shown = write_picture(opened, part)
        card = Card(
            model=opened,
            architecture=chosen,
            with_code=with_code,
            max_positions=positions,
            parameters=sum(value.numel() for value in gpt2.tensors().values()),
            training=training(opened),
            losses=losses(opened),
            evaluation=table,
            picture=shown,
        )
        atomic.write_text(part / "README.md", card.text())
        check(part, gpt2)
        bar.advance(size)
    return out


@torch.no_grad()
def check(folder: Path, gpt2: GPT2) -> None:
    """Raise unless transformers loads a folder with the logits of our model."""
    import transformers

    import headscape.huggingface  # noqa: F401 - registers the classes

    bars = transformers.logging.is_progress_bar_enabled()
    transformers.logging.disable_progress_bar()
    try:
        theirs = transformers.AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, dtype=gpt2.tokens.weight.dtype
        ).eval()
    finally:
        if bars:
            transformers.logging.enable_progress_bar()
    length = min(CHECK_TOKENS, gpt2.config.train_length)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(gpt2.config.vocabulary, (1, length), generator=generator)
    ours = gpt2(tokens.to(gpt2.tokens.weight.device)).cpu()
    found = theirs(tokens).logits
    gap = float((found - ours).abs().max() / ours.abs().max().clamp(min=1))
    if not gap <= TOLERANCE:
        raise AssertionError(f"the exported logits differ by {gap:.2g} from the model's own")


def _ours(model: LoadedModel) -> GPT2Model:
    if isinstance(model, StretchedModel) and isinstance(model.base, GPT2Model):
        if model.extension.factor is None and model.extension.kind != "dynamic":
            raise InputError(
                f"{model.spec.name} stretches by what each length asks for, and an export has one "
                f"factor: write {model.extension.kind}:4, for example."
            )
        stretched = model.for_length(model.base.gpt2.config.train_length)
        assert isinstance(stretched, GPT2Model)
        return stretched
    if not isinstance(model, GPT2Model):
        raise InputError(
            f"{model.spec.name} is not one of our own models: it is a transformers model already."
        )
    return model


def _positions(gpt2: GPT2, asked: int | None) -> int:
    """Return max_position_embeddings: what is asked for, or what the encoding was made for."""
    encoding, longest = gpt2.encoding(), gpt2.config.train_length
    if isinstance(encoding, Learned):
        longest = encoding.length
        if asked not in {None, longest}:
            raise InputError(f"max_positions is {asked}, but the learned table has {longest} rows.")
    if isinstance(encoding, RoPE) and encoding.config.scaling != "none":
        trained = encoding.config.trained_length or longest
        longest = max(longest, round(trained * encoding.config.factor))
    at_least(1, max_positions=asked)
    return longest if asked is None else asked
