"""Builds the documentation site.

    python -m docs.site.build OUT

Pages are staged in a folder next to OUT: those of docs/ as they are, README.md as the first page,
and four kinds that are generated: a page per encoding, the public API, the gallery, and the
notebooks with their stored outputs. Sphinx turns the folder into HTML; any warning fails the build.
"""

import argparse
import re
import shutil
import sys
from functools import partial
from pathlib import Path

from sphinx.application import Sphinx

from docs.site import api_page, encoding_pages, gallery, notebook_pages, pictures

ROOT = Path(__file__).parents[2]
CONTENTS = {
    "Tutorials": ["tutorial"],
    "How to": [
        "gallery", "howto/figure", "howto/own-encoding", "howto/own-arrays", "howto/compare",
        "howto/long-context", "howto/notebook", "howto/cluster", "howto/export",
    ],
    "Explanation": ["position", "choosing", "faq", "glossary"],
    "Reference": [
        "encodings", "figures", "viewer", "pretrained", "architectures", "card", "diagnose",
        "adapt", "atlas", "training", "evaluation", "huggingface", "export", "attention",
        "adding-an-encoding",
    ],
    "Measured": [
        "results", "measured/atlas", "measured/diagnose", "measured/attention",
        "measured/training", "measured/evaluation", "measured/huggingface",
        "measured/pretrained", "scaling", "reliability",
    ],
}  # fmt: skip
"""The written pages by kind, in reading order; a page of docs/ that is not listed is Reference."""
CONTRIBUTORS = ["contributing", "design", "dependencies", "changelog"]
LINK = re.compile(r"(?P<image>!?)\[(?P<label>[^\]\[]*)\]\((?P<target>[^)\s]+)\)")


def stage(folder: Path, *, draft: bool) -> None:
    """Write every page's Markdown to `folder`; a draft has fewer pictures."""
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("site", "data", "*.ipynb"))
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder / name.lower())
    panels = 2 if draft else pictures.PANELS
    encodings = encoding_pages.write(folder / "encodings", ROOT / "docs", panels)
    api_page.write(folder / "api.md")
    gallery.write(folder, draft=draft)
    shown = notebook_pages.write(folder / "notebooks", ROOT / "docs/notebooks")
    pages = {kind: list(names) for kind, names in CONTENTS.items()}
    listed = {page for kind in pages.values() for page in kind} | set(CONTRIBUTORS)
    pages["Tutorials"] += [f"notebooks/{name}" for name in shown]
    pages["Reference"] += [
        *(path.stem for path in sorted((ROOT / "docs").glob("*.md")) if path.stem not in listed),
        "api",
    ]
    contents = {
        **pages,
        "Encodings": [f"encodings/{name}" for name in encodings],
        "Contributors": CONTRIBUTORS,
    }
    readme = (ROOT / "README.md").read_text()
    readme = readme.replace("](docs/site/gallery.py)", "](gallery.md)")
    readme = readme.replace("](docs/notebooks)", f"](notebooks/{shown[0]}.md)")
    readme = readme.replace("](docs/", "](")
    table = folder / "encodings.md"
    text = table.read_text()
    for file, page in encoding_pages.by_file().items():
        text = text.replace(f"](../src/headscape/encodings/{file})", f"](encodings/{page}.md)")
    table.write_text(text)
    trees = [toctree(caption, pages) for caption, pages in contents.items() if pages]
    (folder / "index.md").write_text("\n".join([readme, *trees]))
    for path in folder.rglob("*.md"):
        path.write_text(LINK.sub(partial(resolved, page=path), path.read_text()))


def toctree(caption: str, pages: list[str]) -> str:
    """Return a section of the sidebar."""
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""])


def resolved(found: re.Match[str], page: Path) -> str:
    """Return a link as it is, or its label alone where its target is not part of the site."""
    target = found["target"].replace("src/headscape/__init__.py", "api.md")
    for root_file in ("CONTRIBUTING.md", "CHANGELOG.md"):
        target = target.replace(root_file, root_file.lower())
    path = target.partition("#")[0]
    if path and "://" not in path and not (page.parent / path).exists():
        return found["label"]
    return f"{found['image']}[{found['label']}]({target})"


def render(source: Path, out: Path) -> int:
    """Turn staged pages into HTML; return 0, or 1 after any warning."""
    app = Sphinx(
        srcdir=source,
        confdir=Path(__file__).parent,
        outdir=out,
        doctreedir=source / ".doctrees",
        buildername="html",
        status=None,
        warningiserror=True,
    )
    app.build()
    return app.statuscode


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--draft", action="store_true", help="fewer pictures")
    options = parser.parse_args()
    out: Path = options.out.absolute()
    source = out.with_name(f"{out.name}-source")
    for folder in (source, out):
        shutil.rmtree(folder, ignore_errors=True)
    stage(source, draft=options.draft)
    code = render(source, out)
    print(out / "index.html")
    sys.exit(code)


if __name__ == "__main__":
    main()
