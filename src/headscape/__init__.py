"""Show, train and measure what position does in every attention head of a transformer.

    import headscape as hs

    model = hs.load("runs/cable")
    cap = model.capture("The cat sat on the mat", layers="all")
    cap.bias(layer=-1, head=3)                     # numpy [queries, keys]
    cap.grid(heads=[1, 4, 7, 9]).save("figure.pdf")

    load         open a run, a folder of weights, hf:FOLDER or a model in memory
    train        train a model on a text, into a folder
    capture      what every head does with one text; also model.capture(...)
    compare      the difference of two captures or models, as a figure
    view         every head in the browser, in a notebook or in one HTML file
    atlas        measures of every head of a model, as a page
    evaluate     losses or accuracies at several lengths, as a Table
    stretch      a RoPE model that reads longer texts
    export       a model as a folder that Hugging Face transformers loads
    figures      the figures of the CABLE paper, models included
    attention    attention with a position encoding, in one call
    encodings    the table of encodings; `build` makes one, `register` adds yours

Model, Capture, Measures, Table, Grid and Curves are what these return; GPT2, Encoding and Positions
are for your own code; InputError is the only exception for wrong input. Layers and heads count from
0, and -1 is the last. Each name in `API` below is imported when it is first used.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headscape.arrays.measures import Measures
    from headscape.atlas.write_atlas import atlas
    from headscape.attention.layer import attention
    from headscape.call.positions import Positions
    from headscape.capture.capture import Capture
    from headscape.capture.compare import compare
    from headscape.capture.record import capture
    from headscape.encodings import Encoding, build, encodings, register
    from headscape.errors import InputError
    from headscape.evaluate.evaluate import evaluate
    from headscape.evaluate.table import Table
    from headscape.figures.curves import Curves
    from headscape.figures.grid import Grid
    from headscape.gpt2 import GPT2
    from headscape.huggingface.export import export
    from headscape.loaded import LoadedModel as Model
    from headscape.models.load import load, stretch
    from headscape.paper.job import figures
    from headscape.train.trainer import train
    from headscape.viewer import view

__version__ = "0.1.0"

API = {
    "load": "headscape.models.load",
    "stretch": "headscape.models.load",
    "capture": "headscape.capture.record",
    "compare": "headscape.capture.compare",
    "evaluate": "headscape.evaluate.evaluate",
    "train": "headscape.train.trainer",
    "export": "headscape.huggingface.export",
    "figures": "headscape.paper.job",
    "view": "headscape.viewer",
    "atlas": "headscape.atlas.write_atlas",
    "attention": "headscape.attention.layer",
    "build": "headscape.encodings",
    "encodings": "headscape.encodings",
    "register": "headscape.encodings",
    "Model": "headscape.loaded:LoadedModel",
    "Capture": "headscape.capture.capture",
    "Measures": "headscape.arrays.measures",
    "Table": "headscape.evaluate.table",
    "Grid": "headscape.figures.grid",
    "Curves": "headscape.figures.curves",
    "GPT2": "headscape.gpt2",
    "Encoding": "headscape.encodings",
    "Positions": "headscape.call.positions",
    "InputError": "headscape.errors",
}
"""Public names, and the module that defines each; after a colon, its name there."""

__all__ = [
    "GPT2",
    "Capture",
    "Curves",
    "Encoding",
    "Grid",
    "InputError",
    "Measures",
    "Model",
    "Positions",
    "Table",
    "__version__",
    "atlas",
    "attention",
    "build",
    "capture",
    "compare",
    "encodings",
    "evaluate",
    "export",
    "figures",
    "load",
    "register",
    "stretch",
    "train",
    "view",
]


def __getattr__(name: str) -> Any:
    if name not in API:
        raise AttributeError(f"module 'headscape' has no attribute {name!r}")
    module, _, own_name = API[name].partition(":")
    value = getattr(importlib.import_module(module), own_name or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Keeps a public function from being replaced by the folder of the same name.

    Python binds every imported submodule to its parent, so `import headscape.train.run` would turn
    `headscape.train` into a module.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in API and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
