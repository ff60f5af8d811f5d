"""The package's gradients against those that public code computed by autograd.

Kerple's p and a have a different parametrisation here, so their gradients follow by the chain rule:
dL/dp = dL/draw / (dp/draw), with dp/draw = p for the exponential and p (1 - p/2) for the scaled
logistic.
"""

import numpy as np
import pytest
import torch
from published import FILES, Golden, encoding, load, parameters, scale, tensor
from torch import Tensor

from headscape.call import definition
from headscape.call.bias import dense
from headscape.call.positions import Positions
from headscape.encodings import Encoding, LayerContext
from headscape.encodings.kerple import Kerple, KerplePower
from headscape.kernels.assemble import prepare

WITH_GRADIENTS = [name for name in FILES if "grad_out" in load(name)]


def loss(made: Encoding, z: Golden, x: Tensor | None) -> Tensor:
    """The sum of grad_out times the array of its shape."""
    cotangent = tensor(z["grad_out"])
    if cotangent.dim() == 3 and cotangent.shape[0] == 12:
        # Over a bias they sum every pair, hidden ones at the value of distance 0.
        at = Positions.span(cotangent.shape[-1])
        value = dense(made.bias(LayerContext(at)), at)[0]
        hidden = torch.ones(value.shape[-2:]).triu(1).bool()
        zero = value.diagonal(dim1=-2, dim2=-1)[..., None].expand_as(value)
        return (torch.where(hidden, zero, value) * cotangent).sum()
    q, k, v = (tensor(z[part]) for part in "qkv")
    inputs = prepare(made, q, k, v, x, Positions.span(q.shape[2]), scale=scale(z))
    if cotangent.shape[-1] == cotangent.shape[-2] == q.shape[2]:
        return (definition.scores(inputs).final * cotangent).tril().sum()
    out = definition.run(inputs)
    return ((out if cotangent.dim() == 4 else out.transpose(1, 2).flatten(2)) * cotangent).sum()


def kerple_gradients(kernel: Kerple | KerplePower) -> dict[str, Tensor]:
    with torch.no_grad():
        p, a = kernel.p(), kernel.a()
        slope = p * (1 - p / 2) if isinstance(kernel, KerplePower) else p
        return {"grad_bias_p": kernel.raw_p.grad / slope, "grad_bias_a": kernel.raw_a.grad / a}


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_gradients_are_the_authors(name: str) -> None:
    z = load(name)
    made = encoding(name, z)
    x = tensor(z["x"]).requires_grad_() if "x" in z else None
    loss(made, z, x).backward()
    found = {
        f"grad_{theirs}": made.get_parameter(mine).grad
        for theirs, mine in parameters(name, z, made).items()
    }
    if "grad_weight_rows256_to_288" in z:
        rows = found.pop("grad_weight")
        assert not rows[:256].any()
        assert not rows[288:].any()
        found["grad_weight_rows256_to_288"] = rows[256:288]
    kernel = getattr(made, "base", made)
    if isinstance(kernel, Kerple | KerplePower):
        found |= kerple_gradients(kernel)
    if x is not None:
        found["grad_x"] = x.grad
    expected = {array for array in z if array.startswith("grad_")} - {"grad_out"}
    assert expected <= found.keys()
    for array in expected:
        peer, mine = z[array], found[array].numpy().reshape(z[array].shape)
        floor = 1e-8 * np.abs(peer).max()
        np.testing.assert_allclose(mine, peer, rtol=1e-6, atol=floor, err_msg=array)
