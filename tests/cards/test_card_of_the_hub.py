"""Cards by id, from a server on loopback that speaks as much of the Hub as a config needs."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cards.configs import MPT

COMMIT = "c" * 40
DATA = json.dumps({**MPT, "n_layers": 2}).encode()


class Hub(BaseHTTPRequestHandler):
    """One model with a config, one without."""

    asked: list[str] = []  # noqa: RUF012 - every request of a test, whichever thread served it

    def _answer(self, *, body: bool) -> None:
        self.asked.append(self.path)
        error = None
        if not self.path.startswith(("/owner/mpt/", "/owner/empty/")):
            error = "RepoNotFound"
        elif not self.path.startswith("/owner/mpt/") or not self.path.endswith("/config.json"):
            error = "EntryNotFound"
        self.send_response(200 if error is None else 404)
        data = DATA if error is None else b""
        if error is not None:
            self.send_header("X-Error-Code", error)
        digest = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
        self.send_header("ETag", f'"{digest}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def do_GET(self) -> None:
        """Send a file."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """Send what is known of a file."""
        self._answer(body=False)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    Hub.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def run(endpoint: str, home: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    env = {**kept, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), **more}
    return subprocess.run(
        [sys.executable, "-m", "headscape.cli", "card", *words],
        capture_output=True, text=True, check=False, env=env, cwd=home,
    )  # fmt: skip


def test_a_card_downloads_the_config_alone_and_reads_it_offline(
    endpoint: str, tmp_path: Path
) -> None:
    out = tmp_path / "card.json"
    done = run(endpoint, tmp_path, "hf:owner/mpt", "--out", str(out))
    assert done.returncode == 0, done.stderr
    files = [path for path in Hub.asked if path.startswith("/owner/")]
    assert {Path(path).name for path in files} == {"config.json"}
    [model] = json.loads(out.read_text())["models"]
    assert (model["name"], model["lines"]["position"]) == ("mpt", "ALiBi")
    Hub.asked.clear()
    done = run(endpoint, tmp_path, "hf:owner/mpt", HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert Hub.asked == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:owner/nothing", "no public model owner/nothing"),
        ("hf:owner/empty", "owner/empty on http.* has no config.json"),
    ],
)
def test_a_wrong_id_is_one_sentence(endpoint: str, tmp_path: Path, name: str, message: str) -> None:
    done = run(endpoint, tmp_path, name)
    assert done.returncode == 2
    assert re.search(message, done.stderr), done.stderr
    assert done.stderr.count("\n") == 1
