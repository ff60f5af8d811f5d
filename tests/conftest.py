"""How every test runs: one thread, fixed seeds, no network, and shape checks in some folders."""

import os
from collections.abc import Iterator

# Processes that tests start use one thread too: two workers share the cores. torch reads this when
# it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jaxtyping
import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

from full_disk import largest_file

os.environ["HF_HUB_OFFLINE"] = "1"

# The hook checks shapes in what is imported after it, so nothing of the package comes before.
install_import_hook(
    [
        "headscape.call.positions",
        "headscape.call.bias",
        "headscape.encodings",
        # Not flex: torch counts the arguments of its score functions, which the hook would wrap.
        # Not attend: attention() refuses wrong shapes itself, with a sentence.
        "headscape.kernels.sdpa",
        "headscape.kernels.decode",
        "headscape.kernels.native.adapter",
        "headscape.call.definition",
        "headscape.kernels.torch_blocks",
        "headscape.kernels.torch_regular",
        "headscape.gpt2",
    ],
    "beartype.beartype",
)

CHECKED = {"kernels", "encodings", "gpt2"}
"""Folders whose tests check shapes. Elsewhere the same functions run without the checks, which take
four tenths of a property test's time."""

torch.set_num_threads(1)
settings.register_profile(
    "headscape", deadline=None, derandomize=True, max_examples=10, database=None
)
settings.load_profile("headscape")


@pytest.fixture(autouse=True, scope="module")
def _shape_checks(request: pytest.FixtureRequest) -> None:
    jaxtyping.config.update("jaxtyping_disable", request.path.parent.name not in CHECKED)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Nothing larger than 20,000 bytes can be written."""
    with largest_file(20_000):
        yield
