"""The oracle: every encoding and the attention around it once more, in numpy float64.

Written from the formulas, slowly and plainly, and importing nothing of the package, so that a
mistake there is not repeated here. Use it as `import oracle; oracle.kerple_log_bias(...)`.

Conventions
- Arrays in, float64 arrays out; shape letters b batch, t queries, s keys, h heads, e head dim,
  d model width. A static bias is [h t s], one that reads the input is [b h t s].
- `qpos` [t] and `kpos` [s] are absolute positions, so offsets, decoding rows (t = 1) and lengths
  beyond training are ordinary arguments. distance = qpos - kpos.
- The causal form of a bias holds NaN at pairs the query cannot see: no value is defined there, and
  a comparison that forgets to restrict itself to visible pairs fails instead of passing.
- Parameters carry the letters of the papers.

Absent on purpose: gradients (the golden files have those), dtypes other than float64, speed.
"""

from oracle.absolute import learned_embedding, sinusoidal_embedding
from oracle.adaptive import dape_scores, dapev2_scores
from oracle.attention import (
    attend,
    content_scores,
    masked_softmax,
    own_key,
    per_pair,
    visible_pairs,
)
from oracle.content import (
    cable_bias,
    cope_positions,
    cope_scores,
    fox_bias,
    sigmoid,
    softplus,
    weighted_alibi_bias,
)
from oracle.distance import (
    alibi_bias,
    alibi_slopes,
    fire_bias,
    grid_bias,
    kerple_clamp,
    kerple_log_bias,
    kerple_power_bias,
    kerple_power_weight,
    sandwich_bias,
    t5_bias,
    t5_bucket,
    t5_clipped_bias,
    wavlm_gate,
)
from oracle.polar import bam_bias, pope_scores
from oracle.relative import (
    clipped,
    deberta_bias,
    deberta_bucket,
    grape_bias,
    grape_path_bias,
    inkling_bias,
    shaw_bias,
    xl_bias,
    xl_sinusoids,
)
from oracle.rotary import (
    dynamic_ntk_frequencies,
    learned_frequencies,
    linear_frequencies,
    llama3_frequencies,
    ntk_frequencies,
    proportional_frequencies,
    rope_frequencies,
    rotate,
    xpos_rotate,
    yarn_factor,
    yarn_frequencies,
)
from oracle.shaping import chunked, repeated, shaped, sheared_bias, softmax_with_sink, windowed
from oracle.turning import (
    carope_angles,
    convolve,
    grape_angles,
    path_scores,
    repo_angles,
    selective_angles,
    stick_weights,
    turn,
    wall_scores,
)

__all__ = [
    "alibi_bias",
    "alibi_slopes",
    "attend",
    "bam_bias",
    "cable_bias",
    "carope_angles",
    "chunked",
    "clipped",
    "content_scores",
    "convolve",
    "cope_positions",
    "cope_scores",
    "dape_scores",
    "dapev2_scores",
    "deberta_bias",
    "deberta_bucket",
    "dynamic_ntk_frequencies",
    "fire_bias",
    "fox_bias",
    "grape_angles",
    "grape_bias",
    "grape_path_bias",
    "grid_bias",
    "inkling_bias",
    "kerple_clamp",
    "kerple_log_bias",
    "kerple_power_bias",
    "kerple_power_weight",
    "learned_embedding",
    "learned_frequencies",
    "linear_frequencies",
    "llama3_frequencies",
    "masked_softmax",
    "ntk_frequencies",
    "own_key",
    "path_scores",
    "per_pair",
    "pope_scores",
    "proportional_frequencies",
    "repeated",
    "repo_angles",
    "rope_frequencies",
    "rotate",
    "sandwich_bias",
    "selective_angles",
    "shaped",
    "shaw_bias",
    "sheared_bias",
    "sigmoid",
    "sinusoidal_embedding",
    "softmax_with_sink",
    "softplus",
    "stick_weights",
    "t5_bias",
    "t5_bucket",
    "t5_clipped_bias",
    "turn",
    "visible_pairs",
    "wall_scores",
    "wavlm_gate",
    "weighted_alibi_bias",
    "windowed",
    "xl_bias",
    "xl_sinusoids",
    "xpos_rotate",
    "yarn_factor",
    "yarn_frequencies",
]
