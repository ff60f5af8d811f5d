"""Other libraries' attention, called the way their models call it.

x-transformers: `Attend` with the bias that its ALiBi and T5 modules make for every call.
transformers: GPT-2's eager attention under a dense causal mask, and its SDPA attention; neither has
a bias, so they show what the library's own plumbing costs.
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

Call = Callable[[Tensor, Tensor, Tensor], Tensor]


def x_transformers(bias: nn.Module, attend: nn.Module) -> tuple[Call, list[Tensor]]:

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, attn_bias=bias(q.shape[2], k.shape[2]))[0]

    return call, list(bias.parameters())


def transformers(forward: Callable[..., tuple[Tensor, object]], length: int | None) -> Call:
    module = nn.Module().eval()
    module.is_causal = True
    mask = None
    if length is not None:
        mask = torch.full((length, length), torch.finfo(torch.float32).min).triu(1)[None, None]

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return forward(module, q, k, v, mask)[0].transpose(1, 2)

    return call


def peers(heads: int, head_dim: int, length: int) -> dict[str, tuple[Call, list[Tensor]]]:
    """Every peer, and what it learns beside q, k and v; they are the extra `bench`."""
    with warnings.catch_warnings():
        # Functions are scripted with TorchScript while x-transformers is imported.
        warnings.simplefilter("ignore")
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
        from transformers.models.gpt2.modeling_gpt2 import eager_attention_forward
        from x_transformers.attend import Attend
        from x_transformers.x_transformers import AlibiPositionalBias, RelativePositionBias

    attend = Attend(causal=True, heads=heads)
    t5 = RelativePositionBias(scale=head_dim**0.5, causal=True, heads=heads)
    return {
        "alibi x-transformers": x_transformers(AlibiPositionalBias(heads), attend),
        "t5 x-transformers": x_transformers(t5, attend),
        "no bias transformers eager": (transformers(eager_attention_forward, length), []),
        "no bias transformers sdpa": (transformers(sdpa_attention_forward, None), []),
    }
