"""Small models with every encoding, and the script that opens their exports in a fresh process."""

from typing import Any

import torch

from headscape.encodings import ENCODINGS, WRAPPERS
from headscape.gpt2 import GPT2

SIZES = {"layers": 2, "heads": 4, "width": 32, "vocabulary": 257, "train_length": 48}
STOCK = {
    "nope": "GPTNeoXForCausalLM",
    "learned": "GPT2LMHeadModel",
    "sinusoidal": "GPT2LMHeadModel",
    "rope": "GPTNeoXForCausalLM",
    "rope halves": "GPTNeoXForCausalLM",
    "rope partial": "GPTNeoXForCausalLM",
    "rope linear": "GPTNeoXForCausalLM",
    "rope ntk": "GPTNeoXForCausalLM",
    "rope yarn": "GPTNeoXForCausalLM",
    "rope llama3": "GPTNeoXForCausalLM",
    "learned unscaled": "GPT2LMHeadModel",
}
"""Cases that an architecture of transformers computes."""
CASES: dict[str, dict[str, Any]] = {
    **{name: {"encoding": name} for name in ENCODINGS},
    **{f"{name}+kerple": {"encoding": f"{name}+kerple"} for name in WRAPPERS},
    "dape+fire": {"encoding": "dape+fire"},
    "rope halves": {"encoding": "rope", "encoding_fields": {"pairing": "halves"}},
    "rope partial": {"encoding": "rope", "encoding_fields": {"rotary_fraction": 0.5}},
    "rope linear": {
        "encoding": "rope", "encoding_fields": {"scaling": "linear", "factor": 4.0},
    },
    "rope ntk": {"encoding": "rope", "encoding_fields": {"scaling": "ntk", "factor": 4.0}},
    "rope yarn": {
        "encoding": "rope",
        "encoding_fields": {"scaling": "yarn", "factor": 4.0, "trained_length": 16},
    },
    "rope llama3": {
        "encoding": "rope",
        "encoding_fields": {"scaling": "llama3", "factor": 4.0, "trained_length": 16},
    },
    "rope longrope": {
        "encoding": "rope",
        "encoding_fields": {
            "scaling": "longrope", "factor": 2.0, "trained_length": 16,
            "short_factor": (1.0, 1.1, 1.2, 1.3), "long_factor": (1.0, 2.0, 3.0, 4.0),
        },
    },
    "rope learned": {"encoding": "rope", "encoding_fields": {"learned_frequencies": True}},
    "rope width": {"encoding": "rope", "scale": "width"},
    "learned unscaled": {"encoding": "learned", "scale": "one"},
    "learned sink": {"encoding": "learned", "encoding_fields": {"sink": True}},
    "sinusoidal learned": {"encoding": "sinusoidal", "encoding_fields": {"learned_scale": True}},
    "schedule": {"encoding": "rope:window=8,cable"},
    "qk-norm": {"encoding": "rope", "qk_norm": "after"},
    "qk-clip": {
        "encoding": "inkling:clip=0.5", "qk_norm": "before", "qk_norm_kind": "clip",
        "qk_norm_limit": 1.0,
    },
    "qk-norm before": {
        "encoding": "cable,rope:scaling=dynamic:factor=2.0", "qk_norm": "before",
        "qk_norm_over": "all", "qk_norm_layers": "rotating",
    },
    "chunk": {"encoding": "rope:chunk=8,nope:temperature=llama4:temperature_start=8"},
    "shared": {"encoding": "kerple", "share_encoding": True},
    "everything": {
        "encoding": "alibi",
        "encoding_fields": {
            "window": 20, "temperature": "llama4", "temperature_start": 4, "softcap": 30.0,
            "sink": True,
        },
    },
}  # fmt: skip
SCRIPT = """
import sys
if sys.argv[1] == "code":
    sys.modules["headscape"] = sys.modules["jaxtyping"] = None  # importing them raises
else:
    import headscape.huggingface
from pathlib import Path
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, logging

logging.disable_progress_bar()
torch.set_num_threads(1)
trust = {"trust_remote_code": True} if sys.argv[1] == "code" else {}
given = load_file(sys.argv[2])
tokens, prompt = given["tokens"], given["prompt"]
padded = torch.cat([torch.full((2, 5), 7), prompt], dim=1)
mask = torch.ones_like(padded)
mask[:, :5] = 0
places = (mask.cumsum(1) - 1).clamp(min=0)
found = {}
for folder in map(Path, sys.argv[4:]):
    model = AutoModelForCausalLM.from_pretrained(folder, **trust).eval()
    name, kind = folder.name, type(model).__name__
    with torch.no_grad():
        found[f"{name}/{kind}/logits"] = model(tokens).logits
        # transformers' own models count padding unless they are told the positions.
        more = {} if kind == "HeadscapeForCausalLM" else {"position_ids": places}
        found[f"{name}/{kind}/padded"] = model(padded, attention_mask=mask, **more).logits[:, 5:]
        options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
        ones = torch.ones_like(prompt)
        found[f"{name}/{kind}/written"] = model.generate(prompt, attention_mask=ones, **options)
        found[f"{name}/{kind}/padded written"] = model.generate(
            padded, attention_mask=mask, **options
        )[:, 5:]
save_file({name: value.contiguous() for name, value in found.items()}, sys.argv[3])
"""


def case_model(name: str) -> GPT2:
    """The model of a case, with weights that make every part of it matter."""
    torch.manual_seed(5)
    model = GPT2.from_preset("nano", **{**SIZES, **CASES[name]}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model
