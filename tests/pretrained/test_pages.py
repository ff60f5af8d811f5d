"""The Python of README and tutorial that reads real weights."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from headscape.models.transformers.fetch import fetch

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.pretrained
@pytest.mark.parametrize("name", ["README.md", "docs/tutorial.md"])
def test_the_python_of_a_page_runs_on_real_weights(name: str, tmp_path: Path) -> None:
    fetch("smollm2")
    page = (ROOT / name).read_text()
    assert "<!-- real weights -->\n```python" in page
    code = "\n".join(BLOCK.findall(page))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert line in page
