"""Properties run without shape checks: the tests of encodings, attention and GPT-2 make them.

They are four tenths of a property's time, and every function a property calls is called there too.
"""

from collections.abc import Iterator

import jaxtyping
import pytest


@pytest.fixture(autouse=True)
def _without_shape_checks() -> Iterator[None]:
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
