"""One shell for every page, so that none is written without a policy."""

import re
from pathlib import Path

import pytest

import headscape
from headscape.io.html_page import NO_SCRIPT, html_page
from headscape.io.output_file import KINDS

ROOT = Path(headscape.__file__).parent


def test_a_page_has_its_policy_title_and_style(tmp_path: Path) -> None:
    page = html_page("a <b>", "<p>text</p>\n", style="p{margin:0}")
    head, body = page.split("</head>")
    assert f'<meta http-equiv="Content-Security-Policy" content="{NO_SCRIPT}">' in head
    assert "<title>a &lt;b&gt;</title>" in head
    assert "<style>p{margin:0}</style>" in head
    assert '<meta name="color-scheme" content="light dark">' in head
    assert body == "\n<body>\n<p>text</p>\n</body>\n</html>\n"
    path = tmp_path / "page.html"
    path.write_text(page)
    assert KINDS["html"].recognises(path)


@pytest.mark.parametrize("policy", ["script-src 'self'", None])
def test_a_page_with_a_script_has_its_own_policy_or_its_server_sends_it(policy: str | None) -> None:
    found = re.findall(
        r'Content-Security-Policy" content="(.*?)"', html_page("", "", policy=policy)
    )
    assert found == [policy] * (policy is not None)


def test_no_other_file_writes_a_shell() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}
    assert [name for name, text in texts.items() if "</head>" in text] == ["html_page.py"]
