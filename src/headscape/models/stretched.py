"""RoPE models read past their trained length by stretching their frequencies, weights untouched.

    linear   position interpolation, arXiv:2306.15595
    ntk      a larger base
    dynamic  a base that grows with the length in use
    yarn     slow bands interpolated, scores sharpened, arXiv:2309.00071

`yarn:8` stretches by 8 at every length. Without a number linear, ntk and yarn stretch by test
length / trained length (by 1 up to the trained length), which is what one would choose for that
length; dynamic needs no number, because it follows the length by itself.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headscape.data.dataset import Dataset
from headscape.data.tokenize.tokenizer import Tokenizer
from headscape.encodings import kinds
from headscape.encodings.registry import parse
from headscape.encodings.rope import RoPE, ntk_base, rotary_width
from headscape.errors import InputError
from headscape.gpt2 import GPT2
from headscape.models.gpt2_model import GPT2Model
from headscape.models.loaded import LoadedModel
from headscape.models.model import Edit, Spec, Watch
from headscape.models.transformers.layer_reading import NTK, rope_parameters
from headscape.models.transformers.observed_call import ENCODING
from headscape.models.transformers.published_model import PublishedModel, body_of, text_config

Kind = Literal["linear", "ntk", "dynamic", "yarn"]
TITLES: dict[str, str] = {
    "linear": "linear",
    "ntk": "NTK",
    "dynamic": "dynamic NTK",
    "yarn": "YaRN",
}


@dataclass(frozen=True, kw_only=True)
class Extension:
    """A way to stretch, and by how much."""

    kind: Kind
    factor: float | None = None
    """None for test length / trained length."""

    @property
    def title(self) -> str:
        """What a column calls it."""
        return TITLES[self.kind] + ("" if self.factor is None else f" x{self.factor:g}")

    def factor_at(self, length: int, trained: int) -> float:
        """By how much a test length is stretched."""
        if self.factor is not None:
            return self.factor
        return 1.0 if self.kind == "dynamic" else max(1.0, length / trained)


def parse_extension(text: str) -> Extension:
    """The extension of a name such as `yarn` or `linear:4`."""
    name, colon, number = text.partition(":")
    for kind in get_args(Kind):
        if kind == name:
            return Extension(kind=kind, factor=_factor(number, text) if colon else None)
    raise InputError(f"unknown extension {text!r}: choose {', '.join(TITLES)}, or yarn:8.")


def uses_rope(model: LoadedModel) -> bool:
    """Whether a layer's encoding is RoPE, alone or wrapped."""
    if not isinstance(model, GPT2Model):
        return any(layer.encoding == "rope" for layer in model.spec.layers)
    entries = parse(model.gpt2.config.encoding)
    return any(RoPE in kinds(entry.name).parts for entry in entries)


class StretchedModel(LoadedModel):
    """A RoPE model whose frequencies fit the length it reads; one copy per length, weights shared.

    Example:
        >>> import headscape as hs
        >>> rope = hs.load(hs.GPT2.from_preset("nano", encoding="rope", vocabulary=257))
        >>> hs.stretch(rope, "yarn").spec.name
        'RoPE, YaRN'
    """

    def __init__(self, base: GPT2Model | PublishedModel, extension: Extension) -> None:
        encoding = base.spec.encoding
        if not uses_rope(base):
            raise InputError(
                f"{extension.kind!r} stretches RoPE, and this model's encoding is "
                f"{encoding!r}: leave the extension out or choose a RoPE model."
            )
        if base.spec.train_length is None:
            raise InputError(
                f"the trained length of {base.spec.name} is not known: it is needed "
                f"to stretch a model."
            )
        self.base = base
        self.extension = extension
        self.trained = base.spec.train_length
        self._name = f"{base.spec.name}, {extension.title}"
        self._by_length: dict[int, GPT2Model | PublishedModel] = {}

    def for_length(self, length: int) -> GPT2Model | PublishedModel:
        """The model as it reads `length` tokens."""
        if length not in self._by_length:
            self._by_length[length] = self._made(length)
        return self._by_length[length]

    def _made(self, length: int) -> GPT2Model | PublishedModel:
        if isinstance(self.base, PublishedModel):
            factor = self.extension.factor_at(length, self.trained)
            return stretched_published(
                self.base, self._name, self.extension.kind, factor, self.trained
            )
        base = self.base
        return GPT2Model(
            stretched_gpt2(base.gpt2, self.extension, length),
            tokenizer=base.tokenizer,
            dataset=lambda: base.dataset,
            name=self._name,
            **{name: getattr(base.spec, name) for name in _KEPT},
        )

    @property
    def spec(self) -> Spec:
        """That of the model at its trained length, as the fingerprint is."""
        return self.for_length(self.trained).spec

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The base's."""
        return self.base.tokenizer

    @property
    def dataset(self) -> Dataset | None:
        """The base's."""
        return self.base.dataset

    @property
    def fingerprint(self) -> str:
        """That of the model at its trained length."""
        return self.for_length(self.trained).fingerprint

    def observe(self, tokens: Int[Tensor, "b t"], layers: Sequence[int], watch: Watch) -> None:
        """Run tokens, stretched to their number."""
        self.for_length(tokens.shape[1]).observe(tokens, layers, watch)

    def losses(self, windows: Int[Tensor, "b t_plus_1"], first: int) -> Float[Tensor, "b scored"]:
        """Losses, stretched to the windows' length."""
        return self.for_length(windows.shape[1] - 1).losses(windows, first)

    def edited_losses(
        self, windows: Int[Tensor, "b t_plus_1"], first: int, layer: int, edits: Sequence[Edit]
    ) -> Iterator[Float[Tensor, "b scored"]]:
        """Losses for each edit of a layer, stretched to the windows' length."""
        return self.for_length(windows.shape[1] - 1).edited_losses(windows, first, layer, edits)

    def predictions(
        self, tokens: Int[Tensor, "b t"], where: Bool[Tensor, "b t"]
    ) -> Int[Tensor, " n"]:
        """Predictions, stretched to the number of tokens."""
        return self.for_length(tokens.shape[1]).predictions(tokens, where)

    def continuation(
        self, tokens: Int[Tensor, "b t"], *, length: int, **sampling: Any
    ) -> Iterator[Int[Tensor, "b 1"]]:
        """New tokens, stretched to the final length."""
        return self.for_length(tokens.shape[1] + length).continuation(
            tokens, length=length, **sampling
        )

    def length_error(self, length: int) -> str | None:
        """Why it cannot read a length, stretched to it."""
        return self.for_length(length).length_error(length)

    def cost(self, length: int) -> float:
        """The base's."""
        return self.base.cost(length)


def stretch(model: LoadedModel, extension: str) -> LoadedModel:
    """Return a RoPE model with its frequencies stretched to the length it reads.

    Args:
        model: What `load` returned.
        extension: linear, ntk, dynamic or yarn; `yarn:8` stretches by 8 at every length.

    Example:
        >>> import headscape as hs
        >>> rope = hs.load(hs.GPT2.from_preset("nano", encoding="rope", vocabulary=257))
        >>> hs.stretch(rope, "yarn:4").spec.name
        'RoPE, YaRN x4'
    """
    if isinstance(model, StretchedModel):
        raise InputError(f"{model!r} cannot be stretched: it is stretched already.")
    if not isinstance(model, GPT2Model | PublishedModel):
        raise InputError(
            f"{model!r} cannot be stretched: its attention calls are changed before they run, so "
            f"stretch the model that they are changed in."
        )
    if isinstance(model, PublishedModel) and model.stream is not None:
        raise InputError(f"{model!r} is offloaded, and an offloaded model cannot be stretched.")
    return StretchedModel(model, parse_extension(extension))


_KEPT = ("preset", "trained", "task", "seed", "recipe", "provenance")


def stretched_gpt2(model: GPT2, extension: Extension, length: int) -> GPT2:
    """A GPT2 with the same weights (shared, not copied) and stretched frequencies."""
    config = model.config
    factor = extension.factor_at(length, config.train_length)
    changes = {"scaling": extension.kind, "factor": factor}
    stretched = replace(config, encoding_fields={**config.encoding_fields, **changes})
    with torch.device("meta"):
        twin = GPT2(stretched)
    twin.load_state_dict(model.state_dict(), assign=True)
    return twin.train(model.training)


def _factor(number: str, text: str) -> float:
    try:
        factor = float(number)
    except ValueError:
        factor = 0.0
    if not 1 <= factor < float("inf"):
        raise InputError(f"{text!r}: an extension's factor must be a number of at least 1.")
    return factor


def stretched_published(
    model: PublishedModel, name: str, kind: str, factor: float, trained: int
) -> PublishedModel:
    """Return the model, called `name`, with `kind` (linear, ntk, dynamic, yarn) applied."""
    if getattr(model.model.config, ENCODING, None):
        raise InputError(
            f"{model.spec.name} has an encoding that set_encoding put in: stretch it with the "
            f"fields of set_encoding, scaling and factor."
        )
    shared = {id(weight): weight for weight in model.model.parameters()}
    twin = copy.deepcopy(model.model, shared)
    body = body_of(twin)
    config = text_config(body, twin)
    plain = rope_parameters(config, 0)
    # transformers keeps one set of parameters, or one per layer type under the type's name.
    if "rope_theta" not in (getattr(config, "rope_parameters", None) or {}):
        raise _refusal(model)
    if plain.get("rope_type", "default") != "default":
        raise InputError(
            f"{model.spec.name} stretches its frequencies already ({plain['rope_type']}): leave "
            f"the extension out."
        )
    rope = next(layer for layer in model.spec.layers if layer.encoding == "rope")
    fraction = float(str(rope.conventions["rotary_fraction"]))
    width = rotary_width(model.spec.head_dim, fraction)
    if width <= 2 and kind in {"ntk", "dynamic"}:
        raise InputError(
            f"{kind!r} stretches the base, which needs a rotary width above 2, and "
            f"{model.spec.name} has {width}: choose linear or yarn."
        )
    config.rope_parameters = {**plain, **_changes(kind, factor, trained, width, plain)}
    if not _renew(body, config):
        raise _refusal(model)
    return PublishedModel(
        twin, name, model.tokenizer, trained=model.spec.trained, origin=model.origin
    )


def _refusal(model: PublishedModel) -> InputError:
    return InputError(
        f"{model.spec.name} is a {type(model.model).__name__}, whose rotary frequencies "
        f"cannot be stretched."
    )


def _changes(
    kind: str, factor: float, trained: int, width: int, plain: dict[str, Any]
) -> dict[str, Any]:
    """The RoPE parameters of an extension, in transformers' names."""
    if kind == "ntk":
        # transformers has no name for it: it is a larger base. The reader gets both numbers back.
        base = plain["rope_theta"]
        return {"rope_theta": ntk_base(base, factor, width), NTK: {"base": base, "factor": factor}}
    original = {"original_max_position_embeddings": trained} if kind == "yarn" else {}
    return {"rope_type": kind, "factor": factor, **original}


def _renew(body: nn.Module, config: Any) -> bool:
    """Make every rotary module again; return whether there is one."""
    found = False
    for parent in list(body.modules()):
        for name, child in list(parent.named_children()):
            kept = getattr(child, "inv_freq", None)
            if "RotaryEmbedding" in type(child).__name__ and isinstance(kept, Tensor):
                setattr(parent, name, type(child)(config).to(kept.device))
                found = True
    return found
