"""The sizes and encodings that the properties are tried on."""

from headscape.encodings import ENCODINGS
from headscape.properties.probe import TRAINED

HEADS = (1, 8, 12, 25)
"""Powers of two and others."""
LENGTHS = (1, 2, 7, 64, 65, 4 * TRAINED)
QUICK = {1: LENGTHS, 12: (2, 7, 4 * TRAINED), 25: (1, 7, 65)}
"""Lengths by number of heads that a quick run tries; a slow run tries every pair."""
WRAPPED = (
    "dape+kerple",
    "dape+alibi",
    "dape+rope",
    "dape+nope",
    "dapev2+kerple",
    "dapev2+cable",
    "dapev2+alibi",
    "dapev2+rope",
    "dapev2+fire",
)
SHAPED = (
    "rope:window=5",
    "alibi:window=9:sink=true",
    "rope+kerple:window=9:sink=true",
    "nope:temperature=ssmax:window=11",
    "nope:temperature=llama4:temperature_start=3",
    "kerple:softcap=3.0:temperature=inkling:temperature_start=5",
    "cable:window=6:sink=true",
    "dapev2+kerple:window=6",
    "rope:chunk=6",
    "alibi:chunk=5:sink=true",
    "nope:temperature=ssmax:chunk=7",
    "selective-rope:window=5",
    "path:window=6",
    "wall:window=6:sink=true",
    "stick-breaking:window=7:softcap=3.0",
    "inkling:temperature=inkling:temperature_start=5",
    "inkling:window=6",
    "inkling:clip=0.5",
    "shaw:window=7:sink=true",
    "grape:gate=path:window=9",
    "alibi:temperature=ssmax:temperature_on=content",
    "rope:temperature=affine",
    "alibi:temperature=affine:window=7",
)
"""Encodings with a window, chunk, temperature, softcap or sink."""
FORMS = (
    "grape:gate=query",
    "grape:gate=both",
    "grape:gate=path",
    "grape:gate=both:unit_key=false",
    "rope:learned_frequencies=true",
    "rope:learned_frequencies=true:pairing=halves:scaling=linear:factor=2.0",
    "rope:scaling=proportional:rotary_fraction=0.5:pairing=halves",
    "grape-m:phase=index",
    "grape-m:per_head=true:per_head_frequencies=true:scale=2.0",
    "selective-rope:projection=per-head:gate=pair:bias=true",
    "selective-rope:skip_conv=true:gate=head",
    "repo:position_map=linear:per_head=false",
    "path:gate=true",
    "path:low_rank=false:convolution=false",
    "path:convolution_bias=true",
    "wall:scalar_gate=true",
    "grid:class_token=true",
    "deberta:terms=p2c",
    "transformer-xl:layout=interleaved:clamp=11",
)
"""Other forms of an encoding than its default."""
COMBINED = (
    "rope+alibi",
    "rope+fox",
    "path+fox",
    "kerple-power+kerple-weight",
    "t5+cable+rope",
    "cope+alibi",
    "pope+kerple",
    "stick-breaking+alibi",
    "dapev2+rope+fox",
)
"""Several encodings in one layer."""
SUBJECTS = (*ENCODINGS, *WRAPPED, *SHAPED, *FORMS, *COMBINED)
