"""The layer schedules of shipped models by name, as patterns (layer_schedule.py).

"cohere2" stands for its pattern, and "cohere2:window=64" for the same with every window 64. `NOTE`
says where the numbers are from and what is not in a pattern. AFMoE, EXAONE 4, Gemma 3 and later,
Llama 4 and OLMo 3 have QK-norm, the model's `qk_norm`.

SmolLM3 with a window has it on the layers without RoPE, the opposite of Cohere 2: write it out. A
pattern must divide the layers, which Gemma 3's does not in a model of 26: write the last two out.
Gemma 4's last layer always has full attention, which the pattern gives if it divides the layers.
ModernBERT is bidirectional and sees 64 keys on either side. MiMo-V2-Flash has full attention at
layers 0, 5, 11, 17 and so on, which is not a repeating pattern: write all layers out.
"""

from dataclasses import dataclass
from typing import Final

NOTE: Final = (
    "Numbers are the defaults of transformers' configs; OLMo 3's are those of its published "
    "long-context models. QK-norm and the scale of the scores belong to the model, not to the "
    "pattern."
)
"""Where the numbers of a pattern are from, and what is not in it."""


@dataclass(frozen=True)
class Shipped:
    """A schedule and the display name of the model it is from."""

    title: str
    pattern: str


GPT_OSS = (
    "rope:pairing=halves:base=150000.0:scaling=yarn:factor=32.0:trained_length=4096:truncate=false"
    ":sink=true"
)

CWM = "rope:pairing=halves:base=1e6:scaling=llama3:factor=16.0:trained_length=8192"

SHIPPED: dict[str, Shipped] = {
    "cohere2": Shipped("Cohere 2", "rope:window=4096*3,nope"),
    "exaone4": Shipped("EXAONE 4", "rope:pairing=halves:window=4096*3,nope"),
    "smollm3": Shipped("SmolLM3", "rope:pairing=halves:base=2e6*3,nope"),
    "llama4": Shipped(
        "Llama 4",
        "rope:chunk=8192:base=5e5*3,nope:temperature=llama4:temperature_start=8192",
    ),
    "gemma2": Shipped(
        "Gemma 2", "rope:pairing=halves:window=4096:softcap=50.0,rope:pairing=halves:softcap=50.0"
    ),
    "gemma3": Shipped(
        "Gemma 3", "rope:pairing=halves:window=4096:base=1e4*5,rope:pairing=halves:base=1e6"
    ),
    "olmo3": Shipped(
        "OLMo 3",
        "rope:pairing=halves:window=4096:base=5e5*3,"
        "rope:pairing=halves:base=5e5:scaling=yarn:factor=8.0:trained_length=8192",
    ),
    "gpt-oss": Shipped("gpt-oss", f"{GPT_OSS}:window=128,{GPT_OSS}"),
    "gemma3n": Shipped(
        "Gemma 3n", "rope:pairing=halves:window=512:base=1e4*4,rope:pairing=halves:base=1e6"
    ),
    "gemma4": Shipped(
        "Gemma 4",
        "rope:pairing=halves:window=512:base=1e4*5,"
        "rope:pairing=halves:base=1e6:scaling=proportional:rotary_fraction=0.25",
    ),
    "granite-swa": Shipped(
        "Granite SWA", "rope:pairing=halves:sink=true,rope:pairing=halves:sink=true:window=128*3"
    ),
    "cwm": Shipped("CWM", f"{CWM},{CWM}:window=8192*3"),
    "afmoe": Shipped("AFMoE", "rope:pairing=halves:window=1024*3,nope"),
    "ministral3": Shipped(
        "Ministral 3",
        "rope:pairing=halves:base=1e6:scaling=yarn:factor=16.0:trained_length=16384:mscale=1.0"
        ":mscale_all_dim=1.0:temperature=ministral:temperature_rate=0.1:temperature_start=16384",
    ),
    "modernbert": Shipped(
        "ModernBERT", "rope:pairing=halves:base=160000.0,rope:pairing=halves:base=1e4:window=65*2"
    ),
}
