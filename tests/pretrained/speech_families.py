"""Families that read sound: frames of features or a waveform."""

from pretrained.family import DEBERTA, VOCABULARY, Family

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

SPEECH_FAMILIES = {
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
}  # fmt: skip
