"""A model's shape and every convention it was built with."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from headscape.encodings import Encoding, Shape, make
from headscape.encodings.registry import Entry, per_layer
from headscape.errors import InputError, as_tuples, at_least, check_types, unknown

Scale = Literal["head_dim", "width", "one"]
GPT2_VOCABULARY = 50_304
"""GPT-2's 50,257 tokens, padded to a multiple of 128."""

PRESETS: dict[str, dict[str, int]] = {
    "nano": {"layers": 2, "heads": 12, "width": 192},
    "mini": {"layers": 6, "heads": 12, "width": 384},
    "tiny": {"layers": 6, "heads": 8, "width": 512},
    "small": {"layers": 12, "heads": 12, "width": 768},
    "medium": {"layers": 24, "heads": 16, "width": 1024},
    "large": {"layers": 36, "heads": 20, "width": 1280},
    "xl": {"layers": 48, "heads": 25, "width": 1600},
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A GPT-2 and its position encoding."""

    layers: int
    """Number of transformer blocks."""
    heads: int
    """Attention heads per layer."""
    width: int
    """Model width (d_model)."""
    vocabulary: int = GPT2_VOCABULARY
    """Number of tokens."""
    train_length: int = 1024
    """The length it is trained at."""
    encoding: str = "learned"
    """A position encoding such as cable or dapev2+kerple, or a schedule of layers such as
    rope*3,nope; `headscape encodings` lists them."""
    encoding_fields: Mapping[str, object] = field(default_factory=dict)
    """Fields of the encoding that differ from its defaults; in a schedule, of all with them."""
    share_encoding: bool = False
    """One encoding for all layers (T5, official KERPLE) instead of one for each; in a schedule, one
    for all layers with the same entry."""
    scale: Scale = "head_dim"
    """What q.k is multiplied by: 1/sqrt(head_dim), 1/sqrt(width), or one."""
    causal: bool = True
    """Whether a token sees only itself and earlier ones."""
    norm_epsilon: float = 1e-5
    """Epsilon of every norm."""
    qk_norm: Literal["none", "before", "after"] = "none"
    """A norm of queries and keys, before or after their rotation."""
    qk_norm_kind: Literal["rms", "layer", "l2", "clip"] = "rms"
    """RMS norm, LayerNorm without bias (Cohere), division by the length (x-transformers), or clip:
    what is longer than qk_norm_limit gets that length (Inkling 2)."""
    qk_norm_over: Literal["head", "all"] = "head"
    """What the norm's mean is over: each head's dims (Qwen 3), or those of all heads (OLMo 3)."""
    qk_norm_weight: bool = True
    """Whether the norm has a learned weight per dim; with one after the rotation, scores depend on
    absolute positions."""
    qk_norm_layers: Literal["all", "rotating"] = "all"
    """Which layers have it: all, or those whose encoding rotates (Llama 4)."""
    qk_norm_per_head: bool = False
    """Whether every head has its own weights (Cohere); always so with qk_norm_over="all"."""
    qk_norm_scale: float | None = None
    """Factor on q.k in place of `scale`: 10 in x-transformers' L2 norm."""
    qk_norm_limit: float | None = None
    """The largest L2 norm of a clipped query or key: sqrt(512) in Inkling 2."""

    def __post_init__(self) -> None:
        check_types(self, skip=("encoding_fields",))
        if not isinstance(self.encoding_fields, Mapping):
            raise InputError(
                f"encoding_fields must be an object of names and values, got "
                f"{type(self.encoding_fields).__name__}."
            )
        object.__setattr__(self, "encoding_fields", as_tuples(self.encoding_fields))
        at_least(1, layers=self.layers, heads=self.heads, width=self.width)
        at_least(1, vocabulary=self.vocabulary, train_length=self.train_length)
        if self.width % self.heads:
            raise InputError(
                f"{self.heads} heads do not divide a width of {self.width}: "
                f"choose a width that is a multiple of {self.heads}."
            )
        self._check_qk_norm()

    def _check_qk_norm(self) -> None:
        if self.qk_norm == "none":
            for item in fields(self):
                if item.name.startswith("qk_norm_") and getattr(self, item.name) != item.default:
                    raise InputError(
                        f"{item.name}={getattr(self, item.name)!r} has no effect without qk_norm: "
                        f"set qk_norm to 'before' or 'after'."
                    )
        if self.qk_norm_per_head and not self.qk_norm_weight:
            raise InputError(
                "qk_norm_per_head=True has no effect without qk_norm_weight: leave it out."
            )
        for name in ("qk_norm_scale", "qk_norm_limit"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name} must be positive and finite, got {value}.")
        if (self.qk_norm_kind == "clip") != (self.qk_norm_limit is not None):
            raise InputError(
                "qk_norm_kind='clip' and qk_norm_limit need each other: set both or neither."
            )
        if self.qk_norm_kind == "clip" and self.qk_norm_over == "all":
            raise InputError(
                "qk_norm_kind='clip' is over the dims of a head: leave qk_norm_over out."
            )
        if self.qk_norm_scale is not None and self.scale != "head_dim":
            raise InputError(
                f"qk_norm_scale={self.qk_norm_scale} and scale={self.scale!r} exclude each other: "
                f"choose one."
            )

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.width // self.heads

    def schedule(self) -> list[Entry]:
        """Return the encoding of every layer."""
        return per_layer(self.encoding, self.layers, self.encoding_fields)

    def build_encoding(self, entry: Entry) -> Encoding:
        """Return a new encoding of the model's shape."""
        shape = Shape(
            heads=self.heads,
            head_dim=self.head_dim,
            width=self.width,
            train_length=self.train_length,
            causal=self.causal,
        )
        encoding = make(entry.name, shape, entry.fields)
        if encoding.widens and self.qk_norm == "after" and self.qk_norm_weight:
            raise InputError(
                f"qk_norm='after' has weights for {self.head_dim} dims, but {encoding.title} makes "
                f"queries and keys wider: use qk_norm='before', or qk_norm_weight=False."
            )
        return encoding

    def to_json(self) -> dict[str, Any]:
        """Every field, for a checkpoint."""
        return asdict(self) | {"encoding_fields": dict(self.encoding_fields)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "ModelConfig":
        """The config that `to_json` wrote."""
        known = {item.name for item in fields(cls)}
        surplus = sorted(set(data) - known)
        if surplus:
            raise InputError(f"unknown model field {surplus[0]!r}: there are {sorted(known)}.")
        missing = sorted({"layers", "heads", "width"} - set(data))
        if missing:
            raise InputError(f"the model's config has no field {missing[0]!r}.")
        return cls(**data)


def preset(name: str, **changes: Any) -> ModelConfig:
    """A named size, with some fields changed."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return ModelConfig(**{**PRESETS[name], **changes})
