"""The configuration of an exported model, as transformers reads it from config.json.

`kinds` lists the different encodings of a model with every field written out, so a folder does not
depend on the defaults of the version that reads it. `encodings` has the kind of each encoding that
the model builds: first the one at the input, then those of the layers. `layers` has the encoding of
each layer; layers that share one have the same number.
"""

from typing import Any

from transformers import PreTrainedConfig


class HeadscapeConfig(PreTrainedConfig):
    """Sizes and encodings of an exported model."""

    model_type = "headscape"
    keys_to_ignore_at_inference = ("past_key_values",)

    def __init__(
        self,
        vocab_size: int = 257,
        hidden_size: int = 192,
        num_hidden_layers: int = 2,
        num_attention_heads: int = 12,
        max_position_embeddings: int = 1024,
        train_length: int = 1024,
        kinds: list[dict[str, Any]] | None = None,
        encodings: list[int] | None = None,
        layers: list[int] | None = None,
        score_scale: str = "head_dim",
        layer_norm_eps: float = 1e-5,
        qk_norm: str = "none",
        qk_norm_over: str = "head",
        qk_norm_weight: bool = True,
        qk_norm_layers: str = "all",
        qk_norm_kind: str = "rms",
        qk_norm_per_head: bool = False,
        qk_norm_scale: float | None = None,
        initializer_range: float = 0.02,
        use_cache: bool = True,
        **more: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.max_position_embeddings = max_position_embeddings
        self.train_length = train_length
        self.kinds: list[dict[str, Any]] = kinds or [{"name": "nope", "fields": {}}]
        self.encodings = [0, 0] if encodings is None else encodings
        self.layers = [1] * num_hidden_layers if layers is None else layers
        self.score_scale = score_scale
        self.layer_norm_eps = layer_norm_eps
        self.qk_norm = qk_norm
        self.qk_norm_over = qk_norm_over
        self.qk_norm_weight = qk_norm_weight
        self.qk_norm_layers = qk_norm_layers
        self.qk_norm_kind = qk_norm_kind
        self.qk_norm_per_head = qk_norm_per_head
        self.qk_norm_scale = qk_norm_scale
        self.initializer_range = initializer_range
        self.use_cache = use_cache
        super().__init__(**{"tie_word_embeddings": True, **more})
