"""The native kernel inside torch.compile: the same step, forward and backward.

In a process of its own, because what checks shapes under pytest cannot be compiled.
"""

import subprocess
import sys

import pytest
import torch

from headscape.kernels.native import adapter
from headscape.kernels.native.ops import attention, attention_backward
from kernels.calls import BIASES, random_call

SCRIPT = """
import copy, sys, torch
from headscape.gpt2 import GPT2, ModelConfig

torch.manual_seed(0)
shape = {"layers": 1, "heads": 4, "width": 32, "vocabulary": 50, "train_length": 64}
plain = GPT2(ModelConfig(**shape, encoding=sys.argv[1]))
compiled = copy.deepcopy(plain)
compiled.compile()
tokens, gradients = torch.randint(0, 50, (2, 64)), []
for model in (plain, compiled):
    loss = model(tokens, path="native").logsumexp(-1).square().mean()
    gradients.append(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))
for ours, theirs in zip(*gradients, strict=True):
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)
print("compiled", torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""


@pytest.mark.skipif(adapter.available() is not None, reason=str(adapter.available()))
@pytest.mark.compiled
@pytest.mark.parametrize("name", ["alibi", "cable", "fire", "dapev2+kerple"])
def test_a_compiled_model_takes_the_same_step(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) >= 1


@pytest.mark.skipif(adapter.available() is not None, reason=str(adapter.available()))
@pytest.mark.parametrize("kind", BIASES)
def test_the_fake_operators_have_the_layout_of_the_real_ones(kind: str) -> None:
    call = random_call(1, [kind])
    leaves = {name: x.float().requires_grad_() for name, x in call.leaves.items()}
    given = (*adapter.operands(call.inputs(leaves)), True)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(attention, given, test_utils=checks)
    with torch.no_grad():
        out, lse = attention(*given)
        q, k, v, *rest = given
        back = (torch.ones_like(out), q, k, v, out, lse, *rest)
        torch.library.opcheck(attention_backward, back, test_utils=checks[:2])
