"""Reads every language model architecture of the installed transformers, built small.

    python -m benchmarks.architectures [--only NAME ...] [--write]

Every causal, masked and encoder-decoder architecture that transformers lists is built with random
weights from a small config. A multimodal one is built whole where its parts can be made small, and
else by its text part. It is then loaded, and every captured layer is compared with the model
itself on a longer sequence than loading checks: attention's result in every head, and the weights
where the model returns them in eager attention. The verdict of each is one of

read        the recomputed output of every captured layer equals the model's within rounding
refused     Headscape refuses the model in a sentence
not built   transformers does not build the model from a small config
wrong       a layer differs, or an exception other than InputError is raised

--write stores the verdicts in docs/data/architectures.json and docs/architectures.md; with --only
the other rows stay as they are stored. Exits with 1 if a verdict is "wrong".
"""

import argparse
import dataclasses
import json
import logging
import os
import re
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# ruff: noqa: SLF001 - the check reads what the model's own reading is made of
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from torch import Tensor
from transformers.models.auto import modeling_auto

from headscape.call.definition import scores, shared
from headscape.errors import InputError
from headscape.models.load import load
from headscape.models.loaded import eval_mode
from headscape.models.transformers.attention_watch import AttentionWatch
from headscape.models.transformers.published_model import (
    PublishedModel,
    body_of,
    check_layer,
)
from headscape.models.transformers.speech_model import SpeechModel

DOCS = Path(__file__).parent.parent / "docs"
DATA = DOCS / "data" / "architectures.json"
PAGE_PATH = DOCS / "architectures.md"
TASKS = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "encoder-decoder": {
        **modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        **modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    },
}
MOST = 20_000_000
"""Weights of a model that counts as small."""
SECONDS = 60
"""A model that takes longer is stopped."""
LENGTH = 41
"""Tokens compared, more than loading's check has; windows below are shorter."""
TOLERANCE = 3e-5
"""Largest difference allowed between weights that two computations in float32 give."""

WIDTH, HEADS, KEY_HEADS, HEAD_DIM, LAYERS, INNER = 64, 4, 2, 16, 4, 48
SIZES: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "word_embed_proj_dim",
                     "output_embedding_size", "attention_hidden_size", "kv_channels", "embed_dim",
                     "true_hidden_size", "lru_width", "out_hidden_size", "backbone_hidden_size",
                     "projector_hidden_size", "input_embedding_size"), WIDTH),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads",
                     "encoder_attention_heads", "decoder_attention_heads",
                     "swa_num_attention_heads", "num_encoder_attention_heads",
                     "num_decoder_attention_heads",
                     "encoder_num_attention_heads", "decoder_num_attention_heads",
                     "speech_encoder_attention_heads", "t2u_encoder_attention_heads",
                     "t2u_decoder_attention_heads", "conf_num_attention_heads",
                     "linear_num_value_heads", "linear_num_heads", "n_mamba_heads",
                     "cross_num_attention_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads",
                     "encoder_num_key_value_heads", "decoder_num_key_value_heads",
                     "linear_num_key_heads", "n_group", "topk_group", "n_groups"), KEY_HEADS),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_dim", "attention_head_size",
                     "swa_head_dim", "linear_key_head_dim", "linear_value_head_dim",
                     "linear_head_dim", "d_head",
                     "mamba_head_dim", "mamba_d_head", "index_head_dim", "indexer_head_dim",
                     "global_head_dim", "dim_head", "cross_head_dim", "qk_nope_head_dim"),
                    HEAD_DIM),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers",
                     "decoder_layers", "num_encoder_layers", "num_decoder_layers", "depth",
                     "encoder_num_hidden_layers", "decoder_num_hidden_layers",
                     "speech_encoder_layers", "t2u_encoder_layers", "t2u_decoder_layers",
                     "conf_num_hidden_layers"), LAYERS),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "d_inner", "d_ff", "dff", "dim_ff",
                     "encoder_ffn_dim", "decoder_ffn_dim", "moe_intermediate_size", "hidden_dim",
                     "shared_expert_intermediate_size", "shared_intermediate_size",
                     "ffn_hidden_size", "expert_ffn_hidden_size", "dense_intermediate_size",
                     "intermediate_size_mlp", "prefix_dense_intermediate_size",
                     "moe_shared_expert_intermediate_size", "feed_forward_size",
                     "speech_encoder_intermediate_size", "t2u_encoder_ffn_dim",
                     "t2u_decoder_ffn_dim", "mlp_dim"), INNER),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(("vocab_size", "src_vocab_size", "tgt_vocab_size", "decoder_vocab_size",
                     "unpadded_vocab_size", "audio_vocab_size", "t2u_vocab_size",
                     "unit_hifi_gan_vocab_size", "char_vocab_size", "codebook_vocab_size",
                     "vocab_size_per_layer_input", "entity_vocab_size",
                     "encoder_hash_byte_group_vocab", "pronunciation_vocab_size",
                     "shape_vocab_size"), 120),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len",
                     "max_target_positions", "max_source_positions", "context_length",
                     "max_encoder_position_embeddings", "max_decoder_position_embeddings",
                     "t2u_max_position_embeddings", "max_speech_positions", "max_text_positions"),
                    128),
    **dict.fromkeys(("sliding_window", "window_size", "local_attention", "attention_chunk_size",
                     "attention_window_size", "sliding_window_size"), 8),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "o_lora_rank", "embedding_rank",
                     "hidden_size_per_layer_input", "adapter_rank", "laurel_rank",
                     "embedding_size", "mamba_d_state", "state_size", "ssm_state_size",
                     "moe_latent_size", "router_hidden_size", "entity_emb_size",
                     "gated_norm_rank", "hc_lowrank"), 16),
    "v_head_dim": 12, "qk_rope_head_dim": 8, "rotary_dim": 8, "index_n_heads": 4, "index_topk": 6,
    "indexer_n_heads": 4, "indexer_kv_heads": 2, "indexer_budget": 16, "index_block_size": 4,
    "index_topk_blocks": 2, "mamba_n_heads": 8, "mamba_num_heads": 8, "mamba_chunk_size": 8,
    "chunk_size": 8, "zero_expert_num": 2, "d_rel": 8, "rel_extent": 16, "patch_size": 8,
    "image_size": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "query_pre_attn_scalar": 16, "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2, "original_max_position_embeddings": 64,
}  # fmt: skip
"""What a field of a config becomes, by its name."""
ROTATED = {"rope_type": "default", "rope_theta": 10_000.0}
OVERRIDES: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"layer_group_size": 2},
    "bamba": {"attn_layer_indices": [1, 3]},
    "big_bird": {"attention_type": "original_full"},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "blt_global_transformer": {"hidden_size": 2 * WIDTH},
    "blt_local_decoder": {"hidden_size_global": 2 * WIDTH},
    "blt_local_encoder": {"hidden_size_global": 2 * WIDTH},
    "cohere_compass_text": {
        "rope_parameters": {"sliding_attention": ROTATED, "full_attention": ROTATED}
    },
    "dbrx": {
        # transformers reads rope_theta from attn_config, where its class has no such field.
        "attn_config": {"kv_n_heads": KEY_HEADS, "rope_theta": 10_000.0, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": INNER, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dots1": {"n_shared_experts": 1},
    "esmc": {"num_key_value_heads": HEADS},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_d_head": 8},
    "fun_asr_nano": {
        "adaptor_config": {
            "hidden_size": WIDTH,
            "intermediate_size": WIDTH // 4,
            "num_attention_heads": HEADS,
            "projector_hidden_size": INNER,
        },
    },
    "fsmt": {"langs": ["en", "de"]},
    "gemma4_assistant": {
        "text_config": {
            "vocab_size": 120,
            "hidden_size": WIDTH,
            "intermediate_size": INNER,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KEY_HEADS,
            "head_dim": HEAD_DIM,
            "global_head_dim": HEAD_DIM,
            "sliding_window": 8,
            "num_kv_shared_layers": LAYERS,
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
        },
    },
    "gemma3n_text": {"num_hidden_layers": 10, "num_kv_shared_layers": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "kyutai_speech_to_text": {"num_codebooks": 2, "audio_pad_token_id": 0},
    "led": {"attention_window": 8, "max_encoder_position_embeddings": 128},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "longformer": {"attention_window": 8},
    "mamba2": {"num_heads": 8, "head_dim": 16, "expand": 2},
    "mimi": {
        "upsample_groups": WIDTH,
        "num_filters": 8,
        "codebook_size": 64,
        "codebook_dim": 16,
        "num_quantizers": 4,
        "vector_quantization_hidden_dimension": 16,
    },
    "moonshine": {"encoder_num_key_value_heads": HEADS, "decoder_num_key_value_heads": HEADS},
    "moonshine_streaming": {"num_key_value_heads": HEADS},
    "musicgen_decoder": {"num_codebooks": 1},
    "musicgen_melody_decoder": {"num_codebooks": 1},
    "nemotron3_diarization": {
        "head_config": {
            "audio_hidden_size": WIDTH,
            "hidden_size": WIDTH,
            "intermediate_size": INNER,
            "num_attention_heads": HEADS,
            "num_hidden_layers": LAYERS,
        },
    },
    "nemotron3_5_transcribe_word_timestamp": {"blank_token_id": 0},
    "perceiver": {
        "num_latents": 8,
        "d_latents": WIDTH,
        "num_self_attends_per_block": 2,
        "num_self_attention_heads": HEADS,
        "num_cross_attention_heads": HEADS,
    },
    "qwen4_exp_text": {"indexer_compress_ratio": 4, "indexer_kv_heads": 1},
    "ReformerForMaskedLM": {"is_decoder": False},
    "reformer": {"axial_pos_embds_dim": [32, 32], "axial_pos_shape": [8, 16], "is_decoder": True},
    "squeezebert": {"embedding_size": WIDTH},
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
    # Its widths are rounded up to 64 per matrix, and its heads divide both of them.
    "xlstm": {"hidden_size": 128, "embedding_dim": 128, "num_heads": 2},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        # Its attention reads the embedding beside the hidden state, so it is twice as wide.
        "attention_hidden_size": 2 * WIDTH,
        "attention_head_dim": 2 * WIDTH // HEADS,
        "num_key_value_heads": HEADS,
    },
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2, "num_mem_blocks": 1},
    "zaya": {"num_experts_per_tok": 1},
}
"""More fields, by model type, and for one class of a type by its name."""


class NotBuiltError(Exception):
    """transformers does not build a model of this type from a small config."""


def small_config(kind: Any, more: Mapping[str, Any] | None = None) -> Any:
    """Return a config of a class with every size in SIZES made small, sub-configs included.

    `more` is fields for one use of it.
    """
    names = {field.name for field in dataclasses.fields(kind)}
    given: dict[str, Any] = {name: value for name, value in SIZES.items() if name in names}
    own = OVERRIDES.get(kind.model_type, {})
    parts = [name for name in kind.sub_configs if name not in own]
    if parts:
        default = kind()
        for name in parts:
            part = getattr(default, name, None)
            if isinstance(part, transformers.PreTrainedConfig):
                given[name] = small_config(type(part)).to_dict()
    if "kv_lora_rank" in names:
        # In MLA every head has keys of its own, and head_dim is that of the rotated part.
        given |= {"num_key_value_heads": HEADS, "head_dim": SIZES["qk_rope_head_dim"]}
    return kind(**{**given, **own, **(more or {})})


def tokens(length: int) -> Tensor:
    """Return random tokens, none of them special."""
    at = torch.Generator().manual_seed(5)
    return torch.randint(3, SIZES["vocab_size"], (1, length), generator=at)


def build(kind: Any) -> tuple[Any, bool]:
    """Return a small model of a class with random weights, and whether it is the text part only.

    The text part is taken where the whole does not run on tokens. Without one the whole is
    returned as it is: Headscape has to read it in a different way or refuse it.
    """
    reasons = []
    whole = None
    for only_text in (False, True):
        try:
            config = small_config(kind.config_class, OVERRIDES.get(kind.__name__))
            text = config.get_text_config(decoder=True)
            if only_text and isinstance(text, kind.config_class):
                break
            model = _random(_auto(text), text) if only_text else _random(kind, config)
            whole = whole or model
            with torch.no_grad():
                body_of(model)(tokens(LENGTH))
        except Exception as error:  # noqa: BLE001 - whatever transformers raises is the reason
            reasons.append(f"{type(error).__name__}: {error}".replace("\n", " ")[:150])
        else:
            return model, only_text
    if whole is not None:
        return whole, False
    raise NotBuiltError(" / ".join(dict.fromkeys(reasons)))


def _auto(config: Any) -> Any:
    """Return the class of a text part."""
    for mapping in (transformers.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.MODEL_MAPPING):
        if type(config) in mapping:
            return mapping[type(config)]
    raise NotBuiltError(f"{type(config).__name__} has no model of its own")


def _random(kind: Any, config: Any) -> Any:
    """Return a model with random weights on eager attention, which returns its weights."""
    with torch.device("meta"):
        weights = sum(weight.numel() for weight in kind._from_config(config).parameters())
    if weights > MOST:
        raise NotBuiltError(f"{weights:,} weights with small sizes")
    torch.manual_seed(3)
    model = kind._from_config(config, attn_implementation="eager").eval().float()
    parts = ("bias", "sink", "position", "wpe", "rel_", "gate")
    for path, parameter in model.named_parameters():
        if parameter.requires_grad and any(part in path for part in parts):
            # Biases, sinks and tables start at 0 or close to it, where a wrong one is not seen.
            torch.nn.init.normal_(parameter, std=0.3)
    return model


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of one architecture."""

    name: str
    task: str
    architecture: str
    verdict: str
    says: str
    """Encodings of its layers, the refusal, or what went wrong."""
    compared: str = ""
    """What was compared with the model: "weights" or "results"."""
    text_part: bool = False


def without_paths(message: str) -> str:
    """Return a message without the folders of this machine."""
    return re.sub(r" from '/[^']*'?", "", message)


def judge(task: str, name: str, architecture: str) -> Verdict:
    """Build, load and compare one architecture."""
    verdict = Verdict(name=name, task=task, architecture=architecture, verdict="wrong", says="")
    try:
        with limited(SECONDS):
            theirs, text_part = build(getattr(transformers, architecture))
            verdict = dataclasses.replace(verdict, text_part=text_part)
            model = load(theirs)
            assert isinstance(model, PublishedModel)
            compared = compare(model)
            layers = summary([layer.encoding for layer in model.spec.layers])
    except InputError as error:
        refused = "is not read correctly" not in str(error)
        kind = "refused" if refused else "wrong"
        return dataclasses.replace(verdict, verdict=kind, says=str(error))
    except NotBuiltError as error:
        return dataclasses.replace(verdict, verdict="not built", says=without_paths(str(error)))
    except Exception as error:  # noqa: BLE001 - a traceback is a finding
        says = f"{type(error).__name__}: {error}".replace("\n", " ")
        return dataclasses.replace(verdict, says=without_paths(says))
    return dataclasses.replace(verdict, verdict="read", says=layers, compared=compared)


def compare(model: PublishedModel) -> str:
    """Raise AssertionError where a layer differs from the model's own; return what was compared."""
    found: dict[int, Any] = {}
    given = _sample(model)
    every = range(len(model.spec.layers))
    model.observe(given, every, found.__setitem__)
    assert sorted(found) == list(every), f"{len(found)} of {len(every)} layers were observed"
    calls: dict[int, Any] = {}
    results: dict[int, Tensor] = {}
    with torch.no_grad(), eval_mode(model.model):
        with AttentionWatch(model._body, calls.__setitem__, results.__setitem__):
            model._run(given)
        for layer, reading in enumerate(model._readings()):
            check_layer(model.spec.name, layer, reading, calls[layer], results[layer])
        own = own_weights(model, given)
    if own is None or len(own) != len(every) or own[0].shape[-1] != LENGTH:
        return "results"
    for layer, theirs in enumerate(own):
        v = shared(found[layer].v, theirs.shape[1])
        if not torch.allclose(theirs @ v, results[layer], atol=1e-3):
            # Some families return weights that are not those of their result: Granite-SWA returns
            # them before its sink has a share.
            return "results"
        ours = scores(found[layer]).weights
        if theirs.shape != ours.shape:
            return "results"
        gap = float((theirs - ours).abs().max())
        assert gap <= TOLERANCE, f"weights of layer {layer} differ by {gap:.2g}"
    return "weights"


def _sample(model: PublishedModel) -> Tensor:
    """Return what a model reads: random tokens, or noise."""
    if isinstance(model, SpeechModel):
        return torch.from_numpy(model.reads.noise(LENGTH, seed=5))[None]
    return tokens(LENGTH)


def own_weights(model: PublishedModel, given: Tensor) -> list[Tensor] | None:
    """Return the weights that the model itself returns, or None if it returns none."""
    try:
        attentions = model._body(given, output_attentions=True).attentions
    except Exception:  # noqa: BLE001 - many families cannot
        return None
    kept = [each for each in attentions or () if isinstance(each, Tensor) and each.ndim == 4]
    return kept or None


def summary(layers: list[str]) -> str:
    """Return the encodings of layers in short: rope*3, nope."""
    runs: list[list[Any]] = []
    for layer in layers:
        if runs and runs[-1][0] == layer:
            runs[-1][1] += 1
        else:
            runs.append([layer, 1])
    return ", ".join(name if count == 1 else f"{name}*{count}" for name, count in runs)


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise TimeoutError if the block takes longer."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def listed() -> list[tuple[str, str, str]]:
    """Return task, model type and class of every architecture."""
    found = []
    for task, mapping in TASKS.items():
        for name, classes in mapping.items():
            first = classes[0] if isinstance(classes, (list, tuple)) else classes
            found.append((task, name, first))
    return found


PAGE = """# Architectures

Every causal, masked and encoder-decoder architecture that transformers {version} lists was built
small with random weights and given to Headscape. This page is generated:

    python -m benchmarks.architectures --write

* *read*: Headscape's recomputed output of every captured layer equals the model's within rounding,
  on a sequence of {length} tokens; so do the weights, within {tolerance:g}, where the model returns
  the weights it uses (compared: weights)
* *refused*: loading or capturing is refused in one sentence; it quotes transformers where
  transformers itself does not run the model on tokens alone
* *not built*: transformers does not build the model from the small config that the script makes,
  so nothing is known about it
* *wrong*: a layer differs, or an exception that is not a refusal

`unknown` is *position not recognised*: scores and weights are right, and what position does is not
separated into one of our encodings. Of hybrid models the layers with attention are listed.
"Text part" is the text model of an architecture whose other parts could not be made small.

| listed as | read | refused | not built | wrong | all |
|---|---|---|---|---|---|
"""


def table(verdicts: list[Verdict]) -> str:
    """Return the page with every verdict."""
    lines = PAGE.format(
        version=transformers.__version__, length=LENGTH, tolerance=TOLERANCE
    ).splitlines()
    kinds = ("read", "refused", "not built", "wrong")
    for task in TASKS:
        own = [each for each in verdicts if each.task == task]
        counts = [sum(each.verdict == kind for each in own) for kind in kinds]
        lines.append(f"| {task} | " + " | ".join(map(str, [*counts, len(own)])) + " |")
    for task in TASKS:
        lines += ["", f"## {task.capitalize()}", "",
                  "| model type | class | verdict | layers, or the reason | compared |",
                  "|---|---|---|---|---|"]  # fmt: skip
        for each in verdicts:
            if each.task == task:
                part = " (text part)" if each.text_part else ""
                says = each.says.replace("|", "\\|").replace("<", "&lt;")
                cells = (each.name, each.architecture + part, each.verdict, says, each.compared)
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def stored_page() -> str:
    """Return the page as it was written last."""
    return PAGE_PATH.read_text(encoding="utf-8")


def stored_verdicts() -> list[Verdict]:
    """Return the verdicts that were written last."""
    return [Verdict(**row) for row in json.loads(DATA.read_text(encoding="utf-8"))]


def joined(stored: list[Verdict], new: list[Verdict]) -> list[Verdict]:
    """Return the stored verdicts with the new ones in place of those of the same architectures."""

    def identity(each: Verdict) -> tuple[str, str, str]:
        return each.task, each.name, each.architecture

    replaced = {identity(each): each for each in new}
    return [replaced.get(identity(each), each) for each in stored]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="model types, such as llama")
    parser.add_argument("--write", action="store_true", help="write the page and its data")
    given = parser.parse_args()
    if (
        given.only
        and given.write
        and f"transformers {transformers.__version__} " not in stored_page()
    ):
        parser.error(
            f"the stored rows are not of transformers {transformers.__version__}: leave --only out"
        )
    quiet()
    every = [each for each in listed() if not given.only or each[1] in given.only]
    verdicts, start = [], time.monotonic()
    for number, each in enumerate(every, 1):
        verdict = judge(*each)
        verdicts.append(verdict)
        left = (time.monotonic() - start) / number * (len(every) - number)
        print(f"[{number}/{len(every)}, {left:.0f} s left] {verdict.task} {verdict.name}: "
              f"{verdict.verdict} {verdict.compared} {verdict.says[:120]}", flush=True)  # fmt: skip
    for (task, kind), count in sorted(Counter((v.task, v.verdict) for v in verdicts).items()):
        print(f"{task}: {count} {kind}")
    if given.write:
        if given.only:
            verdicts = joined(stored_verdicts(), verdicts)
        data = [dataclasses.asdict(verdict) for verdict in verdicts]
        DATA.write_text(json.dumps(data, indent=1) + "\n")
        PAGE_PATH.write_text(table(verdicts))
    sys.exit(any(verdict.verdict == "wrong" for verdict in verdicts))


def quiet() -> None:
    """Silence transformers, which says much about configs as small as these."""
    transformers.logging.set_verbosity(logging.CRITICAL)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")


if __name__ == "__main__":
    main()
