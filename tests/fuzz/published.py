"""Random published models against their own attention, and folders with mutated JSON.

    python -m fuzz.published --inputs 2000 [attention folder ours]      (from the tests folder)

attention   a family of pretrained/families.py with random sizes and options: every head's weights
            as they are read against those that the model itself returns in eager attention
folder      a folder of small published models with one of its JSON files mutated: it is read, or
            refused in a sentence
ours        the same for folders that GPT2.save_pretrained and export wrote

Every seed is an input of its own. Exits with 1 if weights differ, if anything but InputError is
raised, or if an input takes over 30 s.
"""

import atexit
import copy
import json
import os
import random
import shutil
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import tokenizers
import torch
import transformers
from torch import nn

import headscape as hs
from fuzz.loop import main
from headscape.call.definition import AttentionCall, Scores, scores, shared
from headscape.errors import InputError
from headscape.gpt2 import GPT2
from headscape.gpt2.model_config import ModelConfig
from headscape.huggingface.export import write_export as export_module
from headscape.models.load import load
from headscape.models.transformers.attention_watch import AttentionWatch
from headscape.models.transformers.observed_call import allowance
from headscape.models.transformers.published_model import body_of, check_layer
from pretrained.families import FAMILIES
from pretrained.family import Family
from pretrained.test_families import observed, own_weights

SLOW = 30.0
"""Seconds that an input may take, on a machine that does other things too."""
PLAIN_ROPE = ("llama", "qwen2", "qwen3", "gemma", "smollm3", "phi", "gpt-neox", "helium", "cohere")
"""Families whose config takes any RoPE parameters."""
HEADS = (
    "num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads",
    "encoder_attention_heads", "decoder_attention_heads",
)  # fmt: skip
WIDTHS = ("hidden_size", "n_embd", "d_model", "dim", "word_embed_proj_dim")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers")
LISTED = ("layer_types", "no_rope_layers", "attention_types")
SPANS = (
    "sliding_window", "attention_chunk_size", "local_attention", "local_radius", "window_size",
    "clamp_len", "floor_scale",
)  # fmt: skip


def vary(draw: random.Random, name: str, family: Family) -> Family:
    """Return a family with random sizes and options."""
    config: dict[str, Any] = copy.deepcopy(family.config)
    fixed = name == "phi3-longrope" or "conv_kernel" in config or "conv_dim" in config
    if not fixed and "feature_projection_input_dim" not in config:
        dim = draw.choice([8, 12, 16, 24])
        count = draw.choice([4, 8] if name == "codegen" else [1, 2, 3, 4, 6, 8])
        config |= dict.fromkeys(HEADS & config.keys(), count)
        config |= dict.fromkeys(WIDTHS & config.keys(), count * dim)
        config |= dict.fromkeys({"head_dim", "d_kv"} & config.keys(), dim)
        if "num_key_value_heads" in config:
            config["num_key_value_heads"] = draw.choice([n for n in range(1, 9) if not count % n])
        if "rotary_dim" in config:
            config["rotary_dim"] = draw.choice([2, 4, 8])
    if not LISTED & config.keys():
        layers = draw.randint(1, 3)
        config |= dict.fromkeys(LAYERS & config.keys(), layers)
    config |= {key: draw.randint(1, 40) for key in sorted(SPANS & config.keys())}
    if isinstance(config.get("rope_parameters"), dict):
        config["rope_parameters"]["rope_theta"] = 10 ** draw.uniform(1, 6)
    elif name in PLAIN_ROPE:
        config["rope_parameters"] = _rope(draw, config)
    return replace(family, config=config | _shares(draw, name, config))


def _shares(draw: random.Random, name: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return random rotary shares and bucket counts, where a family has them."""
    found: dict[str, Any] = {
        key: draw.choice([0.25, 0.5, 1.0])
        for key in ("rotary_pct", "partial_rotary_factor")
        if key in config
    }
    if name in {"t5", "umt5", "longt5-local"}:
        found["relative_attention_num_buckets"] = draw.choice([4, 8, 16, 32])
        found["relative_attention_max_distance"] = draw.choice([20, 64, 128])
    return found


def _rope(draw: random.Random, config: dict[str, Any]) -> dict[str, Any]:
    """Return random RoPE parameters."""
    kind = draw.choice(["default", "linear", "dynamic", "yarn", "llama3"])
    found: dict[str, Any] = {"rope_type": kind, "rope_theta": 10 ** draw.uniform(1, 6)}
    if kind != "default":
        found["factor"] = draw.choice([1.5, 2.0, 8.0])
    if kind in {"yarn", "llama3"}:
        found["original_max_position_embeddings"] = draw.choice([8, 16, 32])
    if kind == "yarn" and draw.random() < 0.5:
        found |= {"beta_fast": draw.choice([8.0, 32.0]), "beta_slow": 1.0}
    if kind == "llama3":
        found |= {"low_freq_factor": 1.0, "high_freq_factor": draw.choice([2.0, 4.0])}
    if "partial_rotary_factor" in config:
        found["partial_rotary_factor"] = config["partial_rotary_factor"]
    return found


def rounding(inputs: AttentionCall, every: Scores, *, roundings: int) -> torch.Tensor:
    """How far the weights of a call may differ from the model's own by rounding.

    Eager attention takes its softmax in float32 whatever the dtype, so each score s is rounded to
    s (1 + eps). A score is off by at most `roundings` eps (|q| . |k| scale + |bias|), and a weight,
    whose logarithm is a score minus one of the whole row, by that of its row's largest, times two.
    """
    heads = inputs.q.shape[1]
    size = abs(inputs.scale) * (inputs.q.abs() @ shared(inputs.k, heads).abs().mT)
    size = 1 + (size + every.bias.abs()).masked_fill(~every.visible, 0).amax(-1, keepdim=True)
    return every.weights * (2 * roundings * torch.finfo(torch.float32).eps * size)


def roundings(body: nn.Module, dtype: torch.dtype) -> int:
    """How often a score is rounded to float32.

    Once as the bias and once as the sum in a float64 model; as often as in the check on loading
    where queries and keys are multiplied in float32, as GPT-J, CodeGen and GPT-Neo do.
    """
    multiplies = dtype == torch.float32 or any(hasattr(each, "_attn") for each in body.modules())
    return round(allowance(torch.float32) / torch.finfo(torch.float32).eps) if multiplies else 2


def _runs(model: Any, given: Any) -> bool:
    """Whether transformers itself can run a model of a random config."""
    try:
        with torch.no_grad():
            body_of(model)(given)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return False
    return True


@torch.no_grad()
def recheck(name: str, model: Any, given: torch.Tensor) -> None:
    """Repeat the check on loading with an input: what was read is what the model computes."""
    readings, found = model._readings(), {}

    def compare(layer: int, result: torch.Tensor) -> None:
        check_layer(name, layer, readings[layer], found.pop(layer), result)

    with AttentionWatch(model._body, found.__setitem__, compare):
        model._run(given)


def attention(seed: int) -> str:
    """Weights of every head against the model's own."""
    draw = random.Random(seed)  # noqa: S311 - inputs, not secrets
    name = draw.choice(list(FAMILIES))
    family = vary(draw, name, FAMILIES[name])
    given = family.read(draw.choice([1, 2, draw.randint(3, 60)]))
    try:
        eager = family.build(attn_implementation="eager")
        theirs = eager if family.eager else family.build()
    except (ValueError, KeyError, OSError):
        return "not built"
    except Exception as error:
        if "Strict" in type(error).__name__:
            return "not built"
        raise
    if not _runs(theirs, given):
        return "not built"
    # A difference between sdpa and eager grows from layer to layer, so the weights of a model are
    # compared with what was read of that same model, and sdpa's attention with its own results.
    own_model: Any = load(eager)
    model: Any = own_model if eager is theirs else load(theirs)
    weights = own_weights(own_model._body, given, "wavlm" in family.encodings)
    inputs = observed(own_model, given=given)
    assert len(weights) == len(inputs), f"{name}: {len(inputs)} layers of {len(weights)}"
    count = roundings(own_model._body, family.dtype)
    for layer, own in enumerate(weights):
        every = scores(inputs[layer])
        gap = (every.weights - own.to(every.weights.dtype)).abs()
        allowed = rounding(inputs[layer], every, roundings=count) + torch.finfo(torch.float32).tiny
        worst = float((gap / allowed).max())
        assert worst <= 1, (
            f"{name}: layer {layer} differs by {gap.max():.2g}, {worst:.2g} roundings"
        )
        seen = every.visible.expand_as(every.final)
        total = (every.content + every.bias - every.final)[seen].abs().max()
        size = every.final[seen].abs().max()
        assert total <= 1e-5 * size, f"{name}: layer {layer} is not content and bias"
    recheck(name, model, given)
    known = [layer.encoding for layer in model.spec.layers]
    return "not recognised" if "unknown" in known else "compared"


SAVED = ("llama3", "gemma3", "gpt2", "t5", "bloom", "mpnet", "gpt-oss", "wavlm", "deberta-v3")
JSON_FILES = ("config.json", "config.json", "config.json", "tokenizer_config.json",
              "tokenizer.json", "generation_config.json",
              "model.safetensors.index.json")  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 7, 64, 10**6, 10**12, 10**30, -(10**12), 0.0, 0.5, -1.5, 1e308,
    float("nan"), float("inf"), "", "x", "\ud800", "\x1b[31m", "../x", "/etc/passwd", "pipeline",
    "weights.bin", "gpt2", "llama", "mamba", "eager", "flash_attention_2", "yarn", [], {}, [[]],
    [0], ["x"], {"x": 1}, {"": []}, {"rope_type": "yarn", "factor": 2.0},
)  # fmt: skip


def _changed_bytes(draw: random.Random, text: str) -> bytes:
    data = bytearray(text.encode())
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data))
        data[at : at + draw.randint(0, 3)] = draw.randbytes(draw.randint(0, 3))
    return bytes(data)


def mutated(draw: random.Random, text: str) -> bytes:
    """Return JSON with some of its values replaced, removed or moved, or some bytes changed."""
    if draw.random() < 0.1:
        return _changed_bytes(draw, text)
    value = json.loads(text)
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        places = [(value, key) for key in value]
        for parent, key in places:
            inner = parent[key]
            if isinstance(inner, dict | list) and len(places) < 500:
                keys = inner if isinstance(inner, dict) else range(len(inner))
                places += [(inner, each) for each in keys]
        if not places:
            break
        parent, key = draw.choice(places)
        act = draw.random()
        if act < 0.1 and isinstance(parent, dict):
            del parent[key]
        elif act < 0.2:
            other, at = draw.choice(places)
            parent[key] = json.loads(json.dumps(other[at]))
        elif act < 0.25:
            deep: Any = []
            for _ in range(draw.choice([30, 70, 300])):
                deep = [deep]
            parent[key] = deep
        else:
            parent[key] = copy.deepcopy(draw.choice(VALUES))
    return json.dumps(value).encode()


@cache
def saved() -> Path:
    """Return a folder with a folder per family, each with a tokenizer; one has an index."""
    home = Path(tempfile.mkdtemp(prefix="fuzz-"))
    atexit.register(shutil.rmtree, home)
    words = tokenizers.models.WordLevel({chr(97 + n): n for n in range(26)}, unk_token="a")  # noqa: S106
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words),
        eos_token="b",  # noqa: S106
    )
    for name in SAVED:
        model = FAMILIES[name].build().float()
        model.save_pretrained(home / name, max_shard_size="40KB" if name == "llama3" else "1GB")
        if name != "wavlm":
            tokenizer.save_pretrained(home / name)
    return home


@cache
def saved_ours() -> Path:
    """Return a folder with folders that save_pretrained and export wrote."""
    home = Path(tempfile.mkdtemp(prefix="fuzz-"))
    atexit.register(shutil.rmtree, home)
    export_module.write_picture = lambda *_: None
    sizes: dict[str, Any] = {
        "layers": 2,
        "heads": 2,
        "width": 16,
        "vocabulary": 257,
        "train_length": 32,
    }
    for encoding in ("learned", "rope", "t5", "cable", "rope*1,nope"):
        plain = encoding.replace("*", "-").replace(",", "-")
        model = GPT2(ModelConfig(encoding=encoding, **sizes))
        model.save_pretrained(home / plain)
        hs.export(hs.load(model, tokenizer="bytes"), home / f"export-{plain}")
    return home


def try_folder(
    seed: int, home: Path, names: tuple[str, ...], prefix: Callable[[random.Random], str]
) -> str:
    """Open a copy of a random folder of `home` with one of its JSON files mutated."""
    draw = random.Random(seed)  # noqa: S311
    source = home / draw.choice(sorted(path.name for path in home.iterdir()))
    there = [name for name in names if (source / name).is_file()]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        copied = Path(folder) / "model"
        shutil.copytree(source, copied, copy_function=os.link)
        file = copied / draw.choice(there)
        text = file.read_text()
        file.unlink()
        file.write_bytes(mutated(draw, text))
        try:
            model = load(f"{prefix(draw)}{copied}")
            repr(model.spec)
        except InputError as error:
            said = str(error)
            assert said.isprintable(), f"not a printable line: {said!r}"
            return "refused"
    return "read"


def folder(seed: int) -> str:
    """A published model's folder with mutated JSON."""
    return try_folder(seed, saved(), JSON_FILES, lambda _: "hf:")


OUR_FILES = ("config.json", "config.json", "headscape.json", "headscape_tokenizer.json",
             "tokenizer.json", "tokenizer_config.json", "generation_config.json")  # fmt: skip


def ours(seed: int) -> str:
    """A folder of ours with mutated JSON."""
    return try_folder(seed, saved_ours(), OUR_FILES, lambda draw: draw.choice(["", "hf:"]))


HOMES: dict[str, Callable[[], Path]] = {"folder": saved, "ours": saved_ours}
"""What is written once, before the first input."""
CHECKS: dict[str, Callable[[int], str]] = {"attention": attention, "folder": folder, "ours": ours}


def one(name: str, seed: int) -> tuple[str, str | None]:
    """Try an input; return how it ended and, if it is a finding, what was found."""
    HOMES.get(name, lambda: None)()
    started = time.perf_counter()
    try:
        with warnings.catch_warnings(action="ignore"):
            ended = CHECKS[name](seed)
    except InputError as error:
        return "refused", None if name != "attention" else f"refused: {error}"
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is a finding
        frames = traceback.extract_tb(error.__traceback__)
        inner = [each for each in frames if "/headscape/" in each.filename][-1:] or frames[-1:]
        where = f"{Path(inner[0].filename).name}:{inner[0].lineno}"
        said = " ".join(str(error).split())[:200]
        return "found", f"{type(error).__name__} in {where}: {said}"
    if time.perf_counter() - started > SLOW:
        return ended, f"took {time.perf_counter() - started:.0f} s"
    return ended, None


def check(name: str, seed: int) -> str:
    """Try an input; return how it ended and raise what was found."""
    ended, found = one(name, seed)
    if found is not None:
        raise AssertionError(found)
    return ended


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    main(__doc__, {name: partial(check, name) for name in CHECKS})
