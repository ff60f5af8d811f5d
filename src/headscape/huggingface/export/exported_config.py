"""The configuration of an exported model, as transformers reads it from config.json.

`kinds` lists the different encodings of a model with every field written out, so a folder does not
depend on the defaults of the version that reads it. `encodings` has the kind of each encoding that
the model builds: first the one at the input, then those of the layers. `layers` has the encoding of
each layer; layers that share one have the same number.
"""

from typing import Any

from transformers import PreTrainedConfig

FIELDS: dict[str, Any] = {
    "vocab_size": 257,
    "hidden_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,
    "max_position_embeddings": 1024,
    "train_length": 1024,
    "score_scale": "head_dim",
    "layer_norm_eps": 1e-5,
    "qk_norm": "none",
    "qk_norm_over": "head",
    "qk_norm_weight": True,
    "qk_norm_layers": "all",
    "qk_norm_kind": "rms",
    "qk_norm_per_head": False,
    "qk_norm_scale": None,
    "initializer_range": 0.02,
    "use_cache": True,
}
"""The other fields, with what they are in a config.json that was written without them."""


class HeadscapeConfig(PreTrainedConfig):
    """Sizes and encodings of an exported model."""

    model_type = "headscape"
    keys_to_ignore_at_inference = ("past_key_values",)

    def __init__(
        self,
        kinds: list[dict[str, Any]] | None = None,
        encodings: list[int] | None = None,
        layers: list[int] | None = None,
        **given: Any,
    ) -> None:
        for name, default in FIELDS.items():
            setattr(self, name, given.pop(name, default))
        self.kinds = kinds or [{"name": "nope", "fields": {}}]
        self.encodings = [0, 0] if encodings is None else encodings
        self.layers = [1] * self.num_hidden_layers if layers is None else layers
        super().__init__(**{"tie_word_embeddings": True, **given})
