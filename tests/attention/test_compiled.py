"""The native kernel inside torch.compile: the same step, forward and backward.

In a process of its own, because what checks shapes under pytest cannot be compiled.
"""

import subprocess
import sys

import pytest

from headscape.attention.native import adapter

SCRIPT = """
import copy, sys, torch
from headscape.gpt2 import GPT2, ModelConfig

torch.manual_seed(0)
shape = {"layers": 2, "heads": 4, "width": 32, "vocabulary": 50, "train_length": 64}
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


@pytest.mark.slow
@pytest.mark.skipif(adapter.available() is not None, reason=str(adapter.available()))
@pytest.mark.parametrize("name", ["alibi", "cable", "fire", "dapev2+kerple"])
def test_a_compiled_model_takes_the_same_step(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) >= 1
