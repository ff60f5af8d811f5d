"""Packs of synthetic layers as capture files."""

from pathlib import Path

import numpy as np

from headscape.captures.capture_file import Capture
from headscape.captures.pack import Pack


def write(pack: Pack, path: Path) -> None:
    """Write a capture with the layers of a pack."""
    header, length = pack.header, pack.length
    Capture(
        encoding=header["encoding"],
        conventions=header.get("conventions", {}),
        claims=header.get("claims", {}),
        model={"name": header.get("title"), "train_length": header.get("train_length")},
        layers=tuple(header["layers"]),
        heads=tuple(header["heads"]),
        length=length,
        causal=header["causal"],
        sequence={"pieces": header.get("pieces", [])},
        provenance={} if header.get("step") is None else {"step": header["step"]},
        trained=False,
        tokens=np.zeros(length, dtype=np.int64),
        positions=np.arange(length, dtype=np.int64),
        calls=pack.layers,
    ).save(path)
