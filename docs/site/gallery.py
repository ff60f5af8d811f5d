"""The gallery: pictures, each with the Python that made it, run as printed while the site is built.

An entry's code ends with an expression, as a notebook's cell does: a figure of Headscape or of
matplotlib. All entries start from START. Models are small and random or trained for seconds, so the
pictures show what can be drawn and not what a trained model does.
"""

import ast
import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import matplotlib as mpl
from matplotlib.figure import Figure
from PIL import Image

from docs.site import pictures
from headscape.plots.view import View

START = """
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

import headscape as hs

sentence = "The cat sat on the mat because it was warm."
story = (
    "The cat sat on the mat because it was warm, and the dog, who had wanted "
    "the mat for himself, sat on the floor because it was all that was left. "
    "When the cat woke up, the dog was asleep, so the cat went to the floor "
    "and slept beside him until the mat was cold again."
)


def model(encoding, layers=2):
    torch.manual_seed(0)
    gpt2 = hs.GPT2.from_preset("nano", encoding=encoding, layers=layers)
    return hs.load(gpt2, tokenizer="gpt2")


cap = model("cable").capture(story)
"""


class Entry(NamedTuple):
    """A picture of the gallery."""

    title: str
    sentence: str
    code: str

    @property
    def name(self) -> str:
        """The file's name without its suffix."""
        return "-".join("".join(x if x.isalnum() else " " for x in self.title.lower()).split())


ENTRIES = (
    Entry(
        "The heads of a layer",
        "What CABLE adds to the scores, a panel per head: queries run down, keys across, and "
        "lighter is greater.",
        "cap.grid(columns=4)",
    ),
    Entry(
        "One column of a paper",
        "Four heads, 3.3 inches wide; `.save(\"figure.pdf\")` keeps text as text.",
        "cap.grid(heads=[0, 3, 6, 9], columns=2, width=3.3)",
    ),
    Entry(
        "Words at the axes",
        "A short text is written at both axes. Weights are coloured by their logarithm, from "
        "0.0001 to 1 in all heads.",
        """
short = model("kerple").capture(sentence)
short.grid("weights", heads=[0, 4, 8], tokens=True, columns=3)
""",
    ),
    Entry(
        "A bias against distance",
        "ALiBi's bias is a function of the distance alone, so all heads are lines of one plot.",
        """
alibi = model("alibi").capture(story)
alibi.curves()
""",
    ),
    Entry(
        "A bias that depends on the tokens",
        "CABLE's bias differs from pair to pair at one distance: the mean, one standard deviation "
        "around it, and all tokens.",
        "cap.curves(heads=[0, 1, 2, 3], columns=2)",
    ),
    Entry(
        "One query",
        "What the last token gives to every key, in all heads; the nearest tokens are named.",
        'cap.row("weights", query=-1)',
    ),
    Entry(
        "All layers and heads",
        "Six layers on one sheet. Layers of one model may have encodings of their own.",
        """
mixed = model("alibi,rope,t5", layers=6).capture(story, layers="all")
mixed.overview("final")
""",
    ),
    Entry(
        "Both signs",
        "Where each sign takes at least a fifth of the range, colours diverge and zero is grey: "
        "Transformer-XL's bias before training.",
        """
signed = model("transformer-xl").capture(story)
signed.grid(heads=[0, 1, 2], columns=3)
""",
    ),
    Entry(
        "The difference of two models",
        "Weights with ALiBi minus those with Kerple, on the same text: logarithmic on "
        "both sides of zero.",
        """
alibi, kerple = model("alibi"), model("kerple")
hs.compare(alibi, kerple, story, quantity="weights", heads=[2, 4, 6], columns=3)
""",
    ),
    Entry(
        "In axes of your own",
        "`ax=` draws into a figure of matplotlib, beside whatever else is in it.",
        """
alibi = model("alibi").capture(story)
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
alibi.grid(heads=[3], ax=left)
alibi.curves(ax=right)
figure
""",
    ),
    Entry(
        "Content + position = score",
        "Every score is split exactly into what the tokens are and where they are; the softmax "
        "makes weights of it.",
        """
figure, axes = plt.subplots(2, 2, figsize=(9, 7.4), layout="constrained")
names = dict(content="content", bias="+ position", final="= score", weights="weight")
for ax, (quantity, name) in zip(axes.flat, names.items()):
    cap.grid(quantity, heads=[0], ax=ax)
    ax.set_title(name)
figure
""",
    ),
    Entry(
        "Position turned down",
        "The positional part of the scores times 0, 0.5, 1 and 2, and the weights that follow.",
        """
figure, axes = plt.subplots(2, 2, figsize=(9, 7.4), layout="constrained")
for ax, factor in zip(axes.flat, (0, 0.5, 1, 2)):
    weights = cap.map("weights", head=0, position=factor)
    hs.Capture.from_arrays(weights).grid(ax=ax)
    ax.set_title(f"position x {factor}")
figure
""",
    ),
    Entry(
        "A sink, in arrays of another tool",
        "Weights made by hand: each query looks at itself, at the token before and at the first "
        "token, the sink.",
        """
words = sentence.split()
weights = np.tril(0.02 + np.eye(10) + np.eye(10, k=-1))
weights[:, 0] += 2
weights /= weights.sum(1, keepdims=True)
sink = hs.Capture.from_arrays(weights, tokens=words, name="sink")
sink.grid(tokens=True, cmap="magma")
""",
    ),
    Entry(
        "Longer than trained",
        "Two models learn one story for a few seconds, 64 bytes at a time, and read up to 512.",
        """
Path("story.txt").write_text(100 * (story + " "))
options = dict(tokenizer="bytes", context_length=64, batch_size=4, steps=20, quiet=True)
for encoding in ("alibi", "sinusoidal"):
    hs.train("nano", encoding=encoding, corpus="story.txt", out=encoding, **options)
models = [hs.load(encoding) for encoding in ("alibi", "sinusoidal")]
hs.evaluate(models, lengths=[64, 128, 256, 512], limit=2048).plot()
""",
    ),
)  # fmt: skip


@contextmanager
def started() -> Iterator[dict[str, Any]]:
    """The variables after START, in an empty folder, with nothing of the user's settings."""
    with (
        tempfile.TemporaryDirectory() as folder,
        chdir(folder),
        mock.patch.dict(os.environ, {"HEADSCAPE_CACHE": f"{folder}/cache"}),
        mpl.rc_context({"backend": "Agg"}),
    ):
        variables: dict[str, Any] = {}
        exec(START, variables)  # noqa: S102 - the code of this file
        yield variables


def draw(entry: Entry, variables: dict[str, Any]) -> bytes:
    """Run an entry's code and return the picture that its last line gives, as a PNG."""
    parsed = ast.parse(entry.code.strip())
    last = parsed.body.pop()
    assert isinstance(last, ast.Expr)
    local = dict(variables)
    exec(compile(parsed, entry.name, "exec"), local)  # noqa: S102
    shown = eval(compile(ast.Expression(last.value), entry.name, "eval"), local)  # noqa: S307
    if isinstance(shown, View):
        return small(shown.encode("png"))
    assert isinstance(shown, Figure)
    file = io.BytesIO()
    shown.savefig(file, format="png", dpi=130, facecolor="white")
    return small(file.getvalue())


def small(png: bytes, widest: int = 1400) -> bytes:
    """Return a picture no wider than the page shows it on a sharp screen, as a PNG."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    if picture.width > widest:
        picture = picture.resize((widest, round(widest * picture.height / picture.width)))
    return pictures.png(picture)


def page(entries: Sequence[Entry]) -> str:
    """Return the page as Markdown; its pictures are in gallery/."""
    parts = [
        "# Gallery",
        "Every picture is drawn by the lines below it while this page is built, after these:",
        block(START),
        "Models are random, so the pictures show what can be drawn and not what trained models do.",
    ]
    for entry in entries:
        picture = f"![{entry.title}](gallery/{entry.name}.png)"
        parts += [f"## {entry.title}", entry.sentence, picture, block(entry.code)]
    return "\n\n".join(parts) + "\n"


def block(code: str) -> str:
    """Return code as Markdown."""
    return f"```python\n{code.strip()}\n```"


def write(folder: Path, *, draft: bool) -> None:
    """Draw the pictures and write the page; a draft has the first three."""
    entries = ENTRIES[:3] if draft else ENTRIES
    (folder / "gallery").mkdir(parents=True)
    with started() as variables:
        drawn = [draw(entry, variables) for entry in entries]
    for entry, picture in zip(entries, drawn, strict=True):
        (folder / f"gallery/{entry.name}.png").write_bytes(picture)
    (folder / "gallery.md").write_text(page(entries))
