"""The layer schedules of shipped models by name, as patterns (layer_schedule.py).

"cohere2" stands for its pattern, and "cohere2:window=64" for the same with every window 64. Numbers
are the defaults of transformers' configs; OLMo 3's are those of its published long-context models.
What belongs to the whole model is not in a pattern: QK-norm (EXAONE 4, Gemma 3, Llama 4, OLMo 3;
the model's `qk_norm`) and the scale of the scores.

SmolLM3 with a window has it on the layers without RoPE, the opposite of Cohere 2: write it out. A
pattern must divide the layers, which Gemma 3's does not in a model of 26: write the last two out.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shipped:
    """A schedule and the display name of the model it is from."""

    title: str
    pattern: str


GPT_OSS = (
    "rope:pairing=halves:base=150000.0:scaling=yarn:factor=32.0:trained_length=4096:truncate=false"
    ":sink=true"
)

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
}
