"""Small models of many architectures with random weights, and what must be recognised in them."""

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

VOCABULARY = 67
SIZES = {
    "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "vocab_size": VOCABULARY,
    "intermediate_size": 64, "max_position_embeddings": 64, "initializer_range": 0.4,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 2}
BART = {
    "d_model": 48, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 6,
    "decoder_attention_heads": 6, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
    "vocab_size": VOCABULARY, "max_position_embeddings": 64, "init_std": 0.4,
}  # fmt: skip
T5 = {
    "d_model": 48, "d_kv": 8, "num_heads": 6, "num_layers": 3, "d_ff": 64, "vocab_size": VOCABULARY,
}  # fmt: skip
DEBERTA = {
    "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8,
    "max_relative_positions": 20,
}  # fmt: skip
XLNET = {
    "d_model": 48, "n_layer": 3, "n_head": 6, "d_inner": 64, "vocab_size": VOCABULARY,
    "initializer_range": 0.4,
}  # fmt: skip
SPEECH = {
    "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 64,
    "initializer_range": 0.4, "apply_spec_augment": False,
}  # fmt: skip
WAVEFORM = {
    **SPEECH, "conv_dim": [12, 10], "conv_kernel": [5, 3], "conv_stride": [3, 2],
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
    "conv_depthwise_kernel_size": 3, "feat_extract_norm": "layer",
}  # fmt: skip
FEATURES = {**SPEECH, "feature_projection_input_dim": 14, "conv_depthwise_kernel_size": 3}
SEAMLESS = {
    "hidden_size": 48, "vocab_size": VOCABULARY, "speech_encoder_layers": 3,
    "speech_encoder_attention_heads": 6, "speech_encoder_intermediate_size": 64,
    "feature_projection_input_dim": 14, "conv_depthwise_kernel_size": 3, "initializer_range": 0.4,
    "encoder_layers": 1, "decoder_layers": 1, "decoder_attention_heads": 6, "decoder_ffn_dim": 64,
}  # fmt: skip
INTERLEAVED = {"layout": "interleaved", "clamp": None, "scale": "head_dim"}
CLIPPED = {"left": 6, "right": 3, "scale": "head_dim"}
CLIPPED_FIELDS = {"left_max_position_embeddings": 6, "right_max_position_embeddings": 3}
HALVES = {"pairing": "halves", "rotary_fraction": 1.0, "base": 10_000.0, "scaling": "none"}
POSITION = ("relative_attention_bias", "position", "wpe", "pos_bias", "rel_pos", "rel_attn")
"""Parts of the names of parameters that start at 0 or close to it."""


@dataclass(frozen=True)
class Family:
    """A class of transformers, its config and what its layers are."""

    model: str
    config: dict[str, Any]
    encodings: tuple[str, ...]
    conventions: dict[str, Any] = field(default_factory=dict)
    """Of the last layer."""
    causal: bool = True
    dtype: torch.dtype = torch.float64
    eager: tuple[str, ...] | None = None
    """What its layers are with eager attention, where that differs."""

    def build(self, **more: Any) -> Any:
        """The model with random weights, the same at every call."""
        kind = getattr(transformers, self.model)
        torch.manual_seed(3)
        model = kind(kind.config_class(**{**self.config, **more})).eval()
        for name, parameter in model.named_parameters():
            # T5's tables and learned positions start at values too small to see a wrong one.
            if not parameter.requires_grad or self.encodings[0] == "sinusoidal":
                continue
            if any(part in name for part in POSITION):
                torch.nn.init.normal_(parameter)
        return model.to(self.dtype)

    def read(self, length: int, batch: int = 1) -> torch.Tensor:
        """What the model reads, of so many tokens or frames."""
        at = torch.Generator().manual_seed(5)
        if "conv_kernel" in self.config:
            length *= self.config.get("squeeze_factor", 1)
            for kernel, stride in ((3, 2), (5, 3)):
                length = (length - 1) * stride + kernel
            return torch.randn(batch, length, generator=at, dtype=self.dtype)
        if "feature_projection_input_dim" in self.config:
            return torch.randn(batch, length, 14, generator=at, dtype=self.dtype)
        return torch.randint(3, VOCABULARY, (batch, length), generator=at)


ROPE = ("rope",) * 3
FAMILIES = {
    "llama": Family("LlamaForCausalLM", GROUPED, ROPE, {**HALVES, "key_heads": 2}),
    "llama3": Family(
        "LlamaForCausalLM",
        {
            **GROUPED,
            "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0,
                "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
        ROPE,
        {"pairing": "halves", "base": 500_000.0, "scaling": "llama3", "factor": 8.0,
         "trained_length": 32},
    ),
    "llama-yarn": Family(
        "LlamaForCausalLM",
        {
            **GROUPED,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
        ROPE,
        {"scaling": "yarn", "factor": 4.0, "trained_length": 16},
    ),
    "mistral": Family("MistralForCausalLM", {**GROUPED, "sliding_window": 5}, ROPE,
                      {**HALVES, "window": 5}),
    "qwen2": Family("Qwen2ForCausalLM", GROUPED, ROPE, HALVES),
    "qwen3": Family("Qwen3ForCausalLM", {**GROUPED, "head_dim": 16}, ROPE, HALVES),
    "gemma": Family("GemmaForCausalLM", {**GROUPED, "head_dim": 16}, ROPE, HALVES),
    "gemma2": Family("Gemma2ForCausalLM", {**GROUPED, "head_dim": 16, "sliding_window": 4,
                     "attn_implementation": "eager"}, ROPE, {**HALVES, "softcap": 50.0}),
    "gemma3": Family("Gemma3ForCausalLM", {**GROUPED, "head_dim": 16, "sliding_window": 4,
                     "layer_types": ["sliding_attention"] * 2 + ["full_attention"]}, ROPE,
                     {"base": 1_000_000.0}),
    "smollm3": Family("SmolLM3ForCausalLM", {**GROUPED, "no_rope_layers": [1, 1, 0]},
                      ("rope", "rope", "nope")),
    "phi": Family("PhiForCausalLM", {**SIZES, "partial_rotary_factor": 0.5}, ROPE,
                  {"rotary_fraction": 0.5, "pairing": "halves"}),
    "gpt-neox": Family("GPTNeoXForCausalLM", {**SIZES, "rotary_pct": 0.25}, ROPE,
                       {"rotary_fraction": 0.25, "pairing": "halves"}),
    "cohere": Family("CohereForCausalLM", GROUPED, ROPE, {"pairing": "interleaved"}),
    "glm": Family("GlmForCausalLM", {**GROUPED, "head_dim": 8}, ROPE,
                  {"pairing": "interleaved", "rotary_fraction": 0.5}),
    "gpt-oss": Family("GptOssForCausalLM", {**GROUPED, "head_dim": 8, "num_local_experts": 2,
                      "num_experts_per_tok": 1, "sliding_window": 4}, ROPE,
                      {"scaling": "yarn", "sink": True, "truncate": False}, dtype=torch.float32),
    "gptj": Family("GPTJForCausalLM", {"n_embd": 48, "n_layer": 3, "n_head": 6, "rotary_dim": 4,
                   "vocab_size": VOCABULARY, "n_positions": 64, "initializer_range": 0.4}, ROPE,
                   {"pairing": "interleaved", "rotary_fraction": 0.5}),
    "codegen": Family("CodeGenForCausalLM", {"n_embd": 64, "n_layer": 3, "n_head": 8,
                      "rotary_dim": 4, "vocab_size": VOCABULARY, "n_positions": 64,
                      "n_ctx": 64, "initializer_range": 0.4}, ROPE, {"pairing": "interleaved"}),
    "roformer": Family("RoFormerModel", SIZES, ROPE, {"pairing": "interleaved"}, causal=False),
    "modernbert": Family("ModernBertModel", {**SIZES, "local_attention": 8,
                         "global_attn_every_n_layers": 2}, ROPE, {"pairing": "halves"},
                         causal=False),
    "esm": Family("EsmModel", {**SIZES, "position_embedding_type": "rotary"}, ROPE, HALVES,
                  causal=False),
    "falcon-rope": Family("FalconForCausalLM", {**SIZES, "multi_query": True}, ROPE,
                          {**HALVES, "key_heads": 1}),
    "bloom": Family("BloomForCausalLM", {"hidden_size": 48, "n_layer": 3, "n_head": 6,
                    "vocab_size": VOCABULARY, "initializer_range": 0.4}, ("alibi",) * 3,
                    {"slopes": "fairseq", "divisor": "one"}),
    "mpt": Family("MptForCausalLM", {"d_model": 48, "n_layers": 3, "n_heads": 6,
                  "max_seq_len": 64, "vocab_size": VOCABULARY, "initializer_range": 0.4},
                  ("alibi",) * 3, {"slopes": "mpt"}),
    "falcon": Family("FalconForCausalLM", {**SIZES, "alibi": True, "multi_query": False},
                     ("alibi",) * 3, {"slopes": "falcon", "divisor": "sqrt_head_dim"},
                     # transformers 5.22 adds the bias twice in eager attention.
                     eager=("unknown",) * 3),
    "gpt2": Family("GPT2LMHeadModel", {"n_embd": 48, "n_layer": 3, "n_head": 6,
                   "n_positions": 64, "vocab_size": VOCABULARY, "initializer_range": 0.4},
                   ("learned",) * 3, {"length": 64, "offset": 0}),
    "gpt-neo": Family("GPTNeoForCausalLM", {"hidden_size": 48, "num_layers": 2, "num_heads": 6,
                      "attention_types": [[["global", "local"], 1]], "window_size": 5,
                      "vocab_size": VOCABULARY, "max_position_embeddings": 64,
                      "initializer_range": 0.4}, ("learned",) * 2, {"scale": "one"}),
    "opt": Family("OPTForCausalLM", {**SIZES, "ffn_dim": 64, "word_embed_proj_dim": 48},
                  ("learned",) * 3, {"length": 64, "offset": 2}),
    "bert": Family("BertModel", SIZES, ("learned",) * 3, {"offset": 0, "length": 64},
                   causal=False),
    "roberta": Family("RobertaModel", {**SIZES, "pad_token_id": 1, "bos_token_id": 0},
                      ("learned",) * 3, {"offset": 2, "length": 62}, causal=False),
    "bart": Family("BartModel", BART, ("learned",) * 2,
                   {"offset": 2}, causal=False),
    "t5": Family("T5ForConditionalGeneration", T5, ("t5",) * 3,
                 {"buckets": 32, "max_distance": 128, "scale": "one"}, causal=False),
    "umt5": Family("UMT5Model", T5, ("t5",) * 3,
                   {"buckets": 32, "scale": "one"}, causal=False),
    "mpnet": Family("MPNetModel", {**SIZES, "pad_token_id": 1}, ("t5",) * 3,
                    {"buckets": 32, "scale": "head_dim"}, causal=False),
    "deberta-v3": Family("DebertaV2Model", {**SIZES, **DEBERTA, "share_att_key": True,
                         "norm_rel_ebd": "layer_norm", "position_biased_input": False},
                         ("deberta",) * 3, {"buckets": 8, "max_distance": 20, "terms": "both",
                         "share_att_key": True}, causal=False),
    "deberta-v2": Family("DebertaV2Model", {**SIZES, **DEBERTA, "share_att_key": False,
                         "pos_att_type": ["p2c"]}, ("deberta",) * 3,
                         {"terms": "p2c", "share_att_key": False}, causal=False),
    "deberta-without-buckets": Family("DebertaV2Model", {**SIZES, **DEBERTA,
                                      "position_buckets": -1}, ("deberta",) * 3,
                                      {"bucketing": "none", "buckets": 20}, causal=False),
    "deberta-v1": Family("DebertaModel", {**SIZES, **DEBERTA}, ("deberta",) * 3,
                         {"bucketing": "none", "buckets": 20, "terms": "both"}, causal=False),
    "deberta-v1-c2p": Family("DebertaModel", {**SIZES, **DEBERTA, "pos_att_type": ["c2p"]},
                             ("deberta",) * 3, {"terms": "c2p"}, causal=False),
    "layoutlmv3": Family("LayoutLMv3Model", {**SIZES, "coordinate_size": 8, "shape_size": 8,
                         "has_relative_attention_bias": True, "has_spatial_attention_bias": False,
                         "visual_embed": False, "max_rel_pos": 40, "rel_pos_bins": 16},
                         ("t5",) * 3, {"buckets": 16, "max_distance": 40,
                         "multiplier": "inverse_sqrt_head_dim", "scale": "head_dim"},
                         causal=False),
    "wav2vec2-conformer": Family("Wav2Vec2ConformerModel", {**WAVEFORM,
                                 "position_embeddings_type": "relative"},
                                 ("transformer-xl",) * 3, INTERLEAVED, causal=False),
    "wav2vec2-conformer-rotary": Family("Wav2Vec2ConformerModel", {**WAVEFORM,
                                        "position_embeddings_type": "rotary"},
                                        ("unknown",) * 3, causal=False),
    "wav2vec2-bert": Family("Wav2Vec2BertModel", {**FEATURES, **CLIPPED_FIELDS,
                            "position_embeddings_type": "relative_key"}, ("shaw",) * 3, CLIPPED,
                            causal=False),
    "wav2vec2-bert-relative": Family("Wav2Vec2BertForCTC", {**FEATURES, "vocab_size": 20,
                                     "position_embeddings_type": "relative"},
                                     ("transformer-xl",) * 3, INTERLEAVED, causal=False),
    "wav2vec2-bert-rotary": Family("Wav2Vec2BertModel", {**FEATURES,
                                   "position_embeddings_type": "rotary"}, ("unknown",) * 3,
                                   causal=False),
    "wav2vec2-bert-adapter": Family("Wav2Vec2BertModel", {**FEATURES, **CLIPPED_FIELDS,
                                    "position_embeddings_type": "relative_key",
                                    "add_adapter": True}, ("shaw",) * 3, CLIPPED, causal=False),
    "seamless-m4t-v2": Family("SeamlessM4Tv2ForSpeechToText", {**SEAMLESS, **CLIPPED_FIELDS,
                              "position_embeddings_type": "relative_key"}, ("shaw",) * 3, CLIPPED,
                              causal=False),
    "seamless-m4t": Family("SeamlessM4TForSpeechToText", {**SEAMLESS,
                           "position_embeddings_type": "relative"}, ("transformer-xl",) * 3,
                           INTERLEAVED, causal=False),
    "wavlm": Family("WavLMModel", {**WAVEFORM, "num_buckets": 16, "max_bucket_distance": 20},
                    ("wavlm",) * 3, {"buckets": 16, "max_distance": 20, "scale": "head_dim"},
                    causal=False),
    "wavlm-stable": Family("WavLMForCTC", {**WAVEFORM, "num_buckets": 16,
                           "max_bucket_distance": 20, "do_stable_layer_norm": True,
                           "vocab_size": 20}, ("wavlm",) * 3, {"buckets": 16}, causal=False),
    "sew-d": Family("SEWDModel", {**WAVEFORM, **DEBERTA, "squeeze_factor": 2, "share_att_key": True,
                    "norm_rel_ebd": "layer_norm"}, ("deberta",) * 3,
                    {"buckets": 8, "max_distance": 20, "bucketing": "log", "terms": "both"},
                    causal=False),
    "hubert": Family("HubertModel", WAVEFORM, ("nope",) * 3, causal=False),
    "wav2vec2": Family("Wav2Vec2Model", WAVEFORM, ("nope",) * 3, {"scale": "head_dim"},
                       causal=False),
    "xlnet": Family("XLNetModel", XLNET, ("transformer-xl",) * 3,
                    {"layout": "halves", "clamp": None, "scale": "head_dim"}, causal=False),
    "xlnet-clamped": Family("XLNetModel", {**XLNET, "clamp_len": 7}, ("transformer-xl",) * 3,
                            {"clamp": 7}, causal=False),
    "xlnet-causal": Family("XLNetLMHeadModel", {**XLNET, "attn_type": "uni"},
                           ("transformer-xl",) * 3),
    "helium": Family("HeliumForCausalLM", {**GROUPED, "head_dim": 8}, ROPE,
                     {"pairing": "interleaved", "base": 100_000.0}),
    "llama4": Family("Llama4ForCausalLM", {**GROUPED, "head_dim": 8, "num_local_experts": 2,
                     "intermediate_size_mlp": 64, "attention_chunk_size": 7,
                     "use_qk_norm": False}, ROPE, {"pairing": "interleaved", "chunk": 7}),
    "llama4-nope": Family("Llama4ForCausalLM", {**GROUPED, "head_dim": 8, "num_local_experts": 2,
                          "intermediate_size_mlp": 64, "attention_chunk_size": 7,
                          "no_rope_layers": [1, 1, 0], "floor_scale": 5, "attn_scale": 0.2,
                          "layer_types": ["chunked_attention"] * 2 + ["full_attention"]},
                          ("rope", "rope", "nope"), {"temperature": "llama4",
                          "temperature_rate": 0.2, "temperature_start": 5, "chunk": None}),
    "ministral3": Family(
        "Ministral3ForCausalLM",
        {
            **GROUPED,
            "head_dim": 8,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0,
                "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1,
            },
        },
        ROPE,
        {"scaling": "yarn", "temperature": "ministral", "temperature_start": 16},
    ),
    "phi3-longrope": Family(
        "Phi3ForCausalLM",
        {
            **GROUPED,
            "original_max_position_embeddings": 26,
            "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 10_000.0,
                "original_max_position_embeddings": 26,
                "short_factor": [1.0, 1.1, 1.3, 1.4], "long_factor": [1.0, 2.0, 3.5, 6.0],
            },
        },
        ROPE,
        {"scaling": "longrope", "short_factor": (1.0, 1.1, 1.3, 1.4), "trained_length": 26},
    ),
    "llama-proportional": Family(
        "LlamaForCausalLM",
        {
            **GROUPED,
            "rope_parameters": {
                "rope_type": "proportional", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5,
            },
        },
        ROPE,
        {"scaling": "proportional", "rotary_fraction": 0.5},
    ),
    "xglm": Family("XGLMForCausalLM", {"d_model": 48, "num_layers": 3, "attention_heads": 6,
                   "ffn_dim": 64, "vocab_size": VOCABULARY, "max_position_embeddings": 64,
                   "init_std": 0.4}, ("sinusoidal",) * 3, {"layout": "halves", "offset": 2},
                   dtype=torch.float32),
    "m2m100": Family("M2M100Model", BART, ("sinusoidal",) * 2, {"layout": "halves", "offset": 2},
                     causal=False),
    "longt5-local": Family("LongT5Model", {**T5, "local_radius": 6,
                           "encoder_attention_type": "local"}, ("t5",) * 3,
                           {"buckets": 32, "max_distance": 128, "scale": "one", "window": 7},
                           causal=False),
    "albert": Family("AlbertModel", {**SIZES, "embedding_size": 16}, ("learned",) * 3,
                     {"offset": 0}, causal=False),
    "distilbert": Family("DistilBertModel", {"dim": 48, "n_layers": 2, "n_heads": 6,
                         "hidden_dim": 64, "vocab_size": VOCABULARY,
                         "max_position_embeddings": 64, "sinusoidal_pos_embds": True},
                         ("sinusoidal",) * 2, {"layout": "interleaved"}, causal=False),
    "marian": Family("MarianModel", {**BART, "pad_token_id": 0}, ("sinusoidal",) * 2,
                     {"layout": "halves"}, causal=False),
    "whisper": Family("WhisperModel", {**{key: value for key, value in BART.items()
                      if key != "max_position_embeddings"}, "decoder_layers": 2,
                      "max_target_positions": 64, "pad_token_id": 0, "bos_token_id": 1,
                      "eos_token_id": 2, "decoder_start_token_id": 1}, ("learned",) * 2,
                      {"offset": 0, "length": 64}),
    "mt5": Family("MT5Model", T5, ("t5",) * 3, {"buckets": 32}, causal=False),
    "switch": Family("SwitchTransformersModel", {**T5, "num_experts": 2}, ("t5",) * 3,
                     {"buckets": 32}, causal=False),
}  # fmt: skip
