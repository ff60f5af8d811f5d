"""The code of CONTRIBUTING.md, so that tests run what the page shows."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"


def shown(title: str) -> str:
    """The one block of Python below a heading."""
    found = re.findall(
        rf"^### {title}\n(?:(?!^#).*\n)*?```python\n((?:.*\n)*?)```",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert len(found) == 1, title
    return str(found[0])
