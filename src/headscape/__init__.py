"""Show, train and measure what position does in every attention head of a transformer.

    import headscape as hs

    model = hs.load("runs/cable")
    cap = model.capture("The cat sat on the mat", layers="all")
    cap.bias(layer=-1, head=3)                     # numpy [queries, keys]
    cap.grid(heads=[1, 4, 7, 9]).save("figure.pdf")

    load         open a run, a folder of weights, hf:FOLDER or a model in memory
    train        train a model on a text, into a folder
    capture      what every head does with one text; also model.capture(...)
    watch        what every head does while other code runs a transformers model
    decay        how fast the heads of layers without a softmax forget (Mamba2, Gated DeltaNet ...)
    compare      the difference of two captures or models, as a figure
    card         what position is in every layer, from a config without weights
    view         every head in the browser, in a notebook or in one HTML file
    atlas        measures of every head of a model, as a page
    evaluate     losses or accuracies at several lengths, as a Table
    diagnose     why a model breaks past its trained length, and what mends it
    stretch      a RoPE model that reads longer texts
    export       a model as a folder that Hugging Face transformers loads
    attention    attention with a position encoding, in one call
    bias         what an encoding adds to the scores, as an array
    list_encodings  the table of encodings; `build` makes one, `register` adds yours
    paper_figures   the figures of the CABLE paper, models included

Model, Capture, Measures, Table, Diagnosis, Card, CardComparison, RunResult, EncodingRow, Watched,
CrossAttention and Decays are what these return; Grid, Curves, Row, Overview, Difference, Lengths
and Depths are figures. GPT2, Encoding and Positions are for your own code; InputError is the only
exception for wrong input. Layers and heads count from 0, and -1 is the last. Each name in `API`
below is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headscape.call.positions import Positions
    from headscape.captures.capture_file import Capture
    from headscape.captures.cross import CrossAttention
    from headscape.captures.decay import Decays, decay
    from headscape.captures.record import capture
    from headscape.captures.watching import Watched, watch
    from headscape.cards.card import Card, CardComparison, card
    from headscape.diagnosis.diagnose import diagnose
    from headscape.diagnosis.report import Diagnosis
    from headscape.encodings import Encoding, build, list_encodings, register
    from headscape.encodings.catalogue import EncodingRow
    from headscape.errors import InputError
    from headscape.evaluation.evaluate import evaluate
    from headscape.evaluation.table import Table
    from headscape.gpt2 import GPT2
    from headscape.huggingface.export.write_export import export
    from headscape.kernels.attend import attention, bias
    from headscape.measures.measures import Measures
    from headscape.models.load import load
    from headscape.models.loaded import LoadedModel as Model
    from headscape.models.stretched import stretch
    from headscape.paper.job import paper_figures
    from headscape.plots.compare import Difference, compare
    from headscape.plots.curves import Curves
    from headscape.plots.grid import Grid
    from headscape.plots.lengths import Depths, Lengths
    from headscape.plots.overview import Overview
    from headscape.plots.row import Row
    from headscape.training.trainer import RunResult, train
    from headscape.viewer.atlas import atlas
    from headscape.viewer.view import view

__version__ = "0.1.0"

API = {
    "load": "headscape.models.load",
    "stretch": "headscape.models.stretched",
    "capture": "headscape.captures.record",
    "watch": "headscape.captures.watching",
    "decay": "headscape.captures.decay",
    "compare": "headscape.plots.compare",
    "evaluate": "headscape.evaluation.evaluate",
    "diagnose": "headscape.diagnosis.diagnose",
    "train": "headscape.training.trainer",
    "export": "headscape.huggingface.export.write_export",
    "paper_figures": "headscape.paper.job",
    "card": "headscape.cards.card",
    "view": "headscape.viewer.view",
    "atlas": "headscape.viewer.atlas",
    "attention": "headscape.kernels.attend",
    "bias": "headscape.kernels.attend",
    "build": "headscape.encodings",
    "list_encodings": "headscape.encodings",
    "register": "headscape.encodings",
    "Model": "headscape.models.loaded:LoadedModel",
    "Capture": "headscape.captures.capture_file",
    "Measures": "headscape.measures.measures",
    "Table": "headscape.evaluation.table",
    "Grid": "headscape.plots.grid",
    "Curves": "headscape.plots.curves",
    "Row": "headscape.plots.row",
    "Overview": "headscape.plots.overview",
    "Difference": "headscape.plots.compare",
    "Lengths": "headscape.plots.lengths",
    "Depths": "headscape.plots.lengths",
    "Card": "headscape.cards.card",
    "CardComparison": "headscape.cards.card",
    "Diagnosis": "headscape.diagnosis.report",
    "RunResult": "headscape.training.trainer",
    "EncodingRow": "headscape.encodings.catalogue",
    "Watched": "headscape.captures.watching",
    "CrossAttention": "headscape.captures.cross",
    "Decays": "headscape.captures.decay",
    "GPT2": "headscape.gpt2",
    "Encoding": "headscape.encodings",
    "Positions": "headscape.call.positions",
    "InputError": "headscape.errors",
}
"""Public names, and the module that defines each; after a colon, its name there."""

MODULES = ("encodings",)
"""Namespaces that are part of the public surface: what an encoding of your own needs."""

__all__ = [
    "GPT2",
    "Capture",
    "Card",
    "CardComparison",
    "CrossAttention",
    "Curves",
    "Decays",
    "Depths",
    "Diagnosis",
    "Difference",
    "Encoding",
    "EncodingRow",
    "Grid",
    "InputError",
    "Lengths",
    "Measures",
    "Model",
    "Overview",
    "Positions",
    "Row",
    "RunResult",
    "Table",
    "Watched",
    "__version__",
    "atlas",
    "attention",
    "bias",
    "build",
    "capture",
    "card",
    "compare",
    "decay",
    "diagnose",
    "evaluate",
    "export",
    "list_encodings",
    "load",
    "paper_figures",
    "register",
    "stretch",
    "train",
    "view",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return importlib.import_module(f"headscape.{name}")
    if name not in API:
        raise AttributeError(f"module 'headscape' has no attribute {name!r}")
    module, _, own_name = API[name].partition(":")
    value = getattr(importlib.import_module(module), own_name or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
