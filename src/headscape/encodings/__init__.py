"""Position encodings, one file per paper; registry.py has the table of all of them.

build("alibi", heads=12, head_dim=64, width=768, train_length=512, slopes="fairseq")
build("dapev2+kerple", heads=12, head_dim=64, width=768, train_length=512, kernel=5)
build("rope+fox", heads=12, head_dim=64, width=768, train_length=512)

An encoding of your own needs nothing from elsewhere: Config, Encoding and Shape, what it is asked
with (LayerContext, LayerInput, Side), and what it answers with (the biases, the mixings, Stream,
Turn).
"""

from headscape.call.bias import Pairwise, Perceptron, RelativeCurves, Slope, Toeplitz
from headscape.call.mixing import CountedTable, KeyConvolution, PairPerceptron, Product, Rows
from headscape.call.positions import Positions, Turn
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.catalogue import EncodingRow, describe, list_encodings
from headscape.encodings.context import LayerContext, LayerInput, QueriesAndKeys, Side, Stream
from headscape.encodings.registry import (
    ENCODINGS,
    WRAPPERS,
    build,
    kinds,
    load_plugin,
    make,
    register,
    slug,
    title,
)

__all__ = [
    "ENCODINGS",
    "WRAPPERS",
    "Config",
    "CountedTable",
    "Encoding",
    "EncodingRow",
    "KeyConvolution",
    "LayerContext",
    "LayerInput",
    "PairPerceptron",
    "Pairwise",
    "Perceptron",
    "Positions",
    "Product",
    "QueriesAndKeys",
    "RelativeCurves",
    "Rows",
    "Shape",
    "Side",
    "Slope",
    "Stream",
    "Toeplitz",
    "Turn",
    "build",
    "describe",
    "kinds",
    "list_encodings",
    "load_plugin",
    "make",
    "register",
    "slug",
    "title",
]
