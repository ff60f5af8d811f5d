"""Counts the lines of the package: what docs/design.md says of its size.

    python -m benchmarks.size

A blank line within a docstring belongs to it. C++ is counted whole.
"""

import ast
import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]


def python_lines(text: str) -> Counter[str]:
    """Return the number of lines of each kind in a Python file."""
    tree = ast.parse(text)
    kinds: dict[int, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            _mark(kinds, node, "imports")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            _mark(kinds, node, "docstrings")
    counted: Counter[str] = Counter()
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.strip()
        if number in kinds:
            counted[kinds[number]] += 1
        elif not words:
            counted["blank"] += 1
        else:
            counted["comments" if words.startswith("#") else "code"] += 1
    return counted


def _mark(kinds: dict[int, str], node: ast.stmt, kind: str) -> None:
    kinds.update(dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), kind))


def main() -> None:
    """Print the number of files, and of lines by kind."""
    listed = subprocess.run(
        ["git", "ls-files", "src/*.py", "src/*.?pp"],  # noqa: S607
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    files = [ROOT / name for name in listed.stdout.splitlines()]
    counted: Counter[str] = Counter()
    for file in files:
        text = file.read_text(encoding="utf-8")
        counted += (
            python_lines(text) if file.suffix == ".py" else Counter({"C++": len(text.splitlines())})
        )
    print(f"{len(files)} files, {counted.total():,} lines")
    for kind in ("code", "docstrings", "blank", "imports", "comments", "C++"):
        print(f"{kind:>10} {counted[kind]:>7,}")


if __name__ == "__main__":
    main()
