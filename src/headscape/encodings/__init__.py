"""Position encodings, one file per paper; names.py has the table of all of them.

build("alibi", heads=12, head_dim=64, width=768, train_length=512, slopes="fairseq")
build("dapev2+kerple", heads=12, head_dim=64, width=768, train_length=512, kernel=5)
"""

from headscape.encodings.base import Encoding, Shape
from headscape.encodings.building import build, make
from headscape.encodings.catalogue import EncodingRow, describe, encodings
from headscape.encodings.context import LayerContext, LayerInput, QueriesAndKeys, Side, Stream
from headscape.encodings.names import (
    ENCODINGS,
    WRAPPERS,
    kinds,
    register,
    slug,
    title,
)
from headscape.encodings.plugins import load_plugin

__all__ = [
    "ENCODINGS",
    "WRAPPERS",
    "Encoding",
    "EncodingRow",
    "LayerContext",
    "LayerInput",
    "QueriesAndKeys",
    "Shape",
    "Side",
    "Stream",
    "build",
    "describe",
    "encodings",
    "kinds",
    "load_plugin",
    "make",
    "register",
    "slug",
    "title",
]
