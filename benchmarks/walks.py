"""Counts the files of the package that one use of it passes through.

    python -m benchmarks.walks [attention] [published] [figure]

attention   hs.attention(q, k, v, encoding="alibi")
published   hs.load("hf:FOLDER").capture(tokens).bias() of a small random Llama
figure      `headscape figures --untrained` of one figure

A file counts if one of its functions or methods is called during the use, in the thread that makes
it. A file that is imported only does not count, nor does what runs while a module is imported.
"""

import argparse
import contextlib
import io
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from unittest.mock import patch

import headscape as hs

ROOT = Path(hs.__file__).parent
COMPREHENSIONS = {"<lambda>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"}
OPTIMIZED = 0x1
"""The flag that the code of a function has and that of a class body has not."""


def walk(use: Callable[[], object]) -> list[str]:
    """Return the files, relative to the package, whose functions run during `use`."""
    called: set[str] = set()
    importing = 0

    def enter(frame: FrameType, event: str, _: object) -> None:
        nonlocal importing
        code = frame.f_code
        if code.co_name == "<module>":
            importing += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not importing and _is_function(code):
            called.add(code.co_filename)

    sys.setprofile(enter)
    try:
        use()
    finally:
        sys.setprofile(None)
    paths = map(Path, called)
    return sorted(str(path.relative_to(ROOT)) for path in paths if path.is_relative_to(ROOT))


def _is_function(code: CodeType) -> bool:
    return bool(code.co_flags & OPTIMIZED) and code.co_name not in COMPREHENSIONS


@contextlib.contextmanager
def _elsewhere() -> Iterator[Path]:
    """Work in an empty folder, which is also the cache."""
    before, cache = Path.cwd(), os.environ.get("HEADSCAPE_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["HEADSCAPE_CACHE"] = folder
        try:
            yield Path(folder)
        finally:
            os.chdir(before)
            os.environ.pop("HEADSCAPE_CACHE")
            if cache is not None:
                os.environ["HEADSCAPE_CACHE"] = cache


def attention() -> list[str]:
    """From hs.attention to the kernel."""
    import torch

    q, k, v = (torch.randn(1, 4, 16, 8) for _ in range(3))
    return walk(lambda: hs.attention(q, k, v, encoding="alibi"))


def published() -> list[str]:
    """From a folder of a published model to the bias of its heads."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=64, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    with _elsewhere() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers.LlamaForCausalLM(config).save_pretrained(folder / "model")
        tokens = list(range(12))
        return walk(lambda: hs.load(f"hf:{folder / 'model'}").capture(tokens).bias())


def figure() -> list[str]:
    """From the command line to one figure of a model as initialised."""
    from typer.main import get_command

    from headscape.cli.app import app

    words = ["figures", "--untrained", "--encodings", "alibi", "--length", "16", "--format", "png",
             "--processes", "1"]  # fmt: skip
    # The corpus `stdlib`, cut to a few modules: encoding all of it takes seconds.
    few = patch.object(sys, "stdlib_module_names", {"email", "http", "json", "logging", "xml"})
    with _elsewhere() as folder, few, contextlib.redirect_stdout(io.StringIO()):
        files = walk(lambda: get_command(app).main(words, standalone_mode=False))
        assert list(folder.rglob("*.png"))
    return files


WALKS = {"attention": attention, "published": published, "figure": figure}


def main() -> None:
    """Print the walks that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("walks", nargs="*", default=list(WALKS), metavar="|".join(WALKS))
    for name in parser.parse_args().walks:
        files = WALKS[name]()
        print(f"{name}: {len(files)} files")
        print(*(f"  {file}" for file in files), sep="\n")


if __name__ == "__main__":
    main()
