"""What was recognised in a model, in lines: equal neighbouring layers share one."""

from dataclasses import fields as fields_of
from itertools import groupby

from headscape.captures.labels import shown_conventions
from headscape.encodings.rope import RoPEConfig
from headscape.models.model import Spec

ROPE = [item.name for item in fields_of(RoPEConfig)]
STRETCHING = set(ROPE[ROPE.index("scaling") :])
"""RoPE's fields that say nothing where the frequencies are not stretched."""


def recognised(spec: Spec) -> list[str]:
    """Return the model's sizes, what acts at the input, and each layer's encoding and fields.

    Layers count from 1.
    """
    context = "unknown" if spec.train_length is None else f"{spec.train_length:,}"
    reads = "causal" if spec.causal else "bidirectional"
    sizes = f"{len(spec.layers)} layers x {spec.heads} heads of {spec.head_dim}"
    lines = [f"{spec.name}: {sizes}, context {context}, {reads}"]
    if "input" in spec.provenance:
        lines.append(f"at the input: {spec.provenance['input']}")
    numbered = enumerate(spec.layers, start=1)
    for layer, same in groupby(numbered, key=lambda pair: pair[1]):
        numbers = [number for number, _ in same]
        span = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        shown = shown_conventions(layer.conventions)
        unused = STRETCHING if shown.get("scaling") == "none" else set()
        used = {key: value for key, value in shown.items() if key not in unused}
        fields = ", ".join(f"{key}={value!r}" for key, value in used.items())
        name = "position not recognised" if layer.encoding == "unknown" else layer.encoding
        lines.append(f"layer {span}: {name}  {fields}")
    return lines
