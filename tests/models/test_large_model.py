"""A model of 6.8 GB in 3 GB of address space."""

from pathlib import Path

import pytest
from benchmarks.offload import limited, used, write_llama

pytest.importorskip("transformers")


@pytest.mark.slow
def test_six_gigabytes_are_captured_and_scored_in_three(tmp_path: Path) -> None:
    write_llama(tmp_path / "llama", layers=32)
    files = list((tmp_path / "llama").glob("*.safetensors"))
    assert sum(file.stat().st_size for file in files) > 6e9
    found = limited(tmp_path / "llama", 3.0)
    expected = used(tmp_path / "llama", offload=False)
    assert {**found, "peak_gb": 0} == {**expected, "peak_gb": 0}
    for file in files:
        file.unlink()
