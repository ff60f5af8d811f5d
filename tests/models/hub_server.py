"""A server on loopback that speaks the part of the Hugging Face Hub's API that downloads use.

Model info, file trees, `resolve` with redirects, etags, linked sizes and commits, ranges, and the
error codes of the Hub. Large files are redirected to a path of their own, as LFS files are.
"""

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".bin", ".gguf")


@dataclass
class Repository:
    """A model on the server."""

    files: dict[str, bytes]
    gated: bool = False
    revisions: tuple[str, ...] = ("main", COMMIT)
    cut: dict[str, int] = field(default_factory=dict)
    """Files whose transfer ends early, and how many times."""
    stated: dict[str, bytes] = field(default_factory=dict)
    """Files whose hash is stated as that of other content."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes that model info states, where they are wrong."""

    @classmethod
    def of(cls, folder: Path, **more: Any) -> "Repository":
        """The files of a folder."""
        return cls({path.name: path.read_bytes() for path in folder.iterdir()}, **more)

    def etag(self, name: str) -> str:
        """SHA-256 of a large file, git's hash of a small one."""
        data = self.stated.get(name, self.files[name])
        if name.endswith(LARGE):
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()

    def entry(self, name: str) -> dict[str, Any]:
        """A file as the tree shows it."""
        size = self.sizes.get(name, len(self.files[name]))
        found: dict[str, Any] = {"type": "file", "path": name, "size": size, "oid": "0" * 40}
        if name.endswith(LARGE):
            digest = self.etag(name)
            found["lfs"] = {"oid": digest, "sha256": digest, "size": size, "pointerSize": 130}
        return found


class HubServer:
    """The server, as a context; `requests` lists what was asked for."""

    def __init__(self, models: dict[str, Repository]) -> None:
        self.models = models
        self.requests: list[tuple[str, str, str | None]] = []
        self.tokens: list[str | None] = []
        """The header Authorization of every request."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.answer(self, body=True)

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "HubServer":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def downloads(self) -> list[str]:
        """Names of the files whose content was sent."""
        return [
            Path(path).name for method, path, _ in self.requests
            if method == "GET" and ("/resolve/" in path or path.startswith("/lfs/"))
        ]  # fmt: skip

    def answer(self, request: BaseHTTPRequestHandler, *, body: bool) -> None:
        """Answer one request."""
        path = unquote(urlparse(request.path).path)
        self.requests.append((request.command, path, request.headers.get("Range")))
        self.tokens.append(request.headers.get("Authorization"))
        api, resolve = path.startswith("/api/models/"), "/resolve/" in path
        words = path.removeprefix("/api/models/").strip("/").split("/")
        lfs = path.startswith("/lfs/")
        model = "/".join(words[1:3] if lfs else words[:2])
        repository = self.models.get(model)
        if repository is None:
            return _refuse(request, 404, "RepoNotFound")
        if lfs:
            return _send_file(request, repository, words[3], body=body)
        revision = words[3] if len(words) > 3 else "main"
        if revision not in repository.revisions:
            return _refuse(request, 404, "RevisionNotFound")
        if api and "tree" in words:
            return _send_json(request, [repository.entry(name) for name in repository.files])
        if api:
            entries = [repository.entry(name) for name in repository.files]
            files = [{**each, "rfilename": each.pop("path")} for each in entries]
            return _send_json(request, {"id": model, "sha": COMMIT, "siblings": files})
        if resolve and repository.gated:
            return _refuse(request, 403, "GatedRepo")
        if words[-1] not in repository.files:
            return _refuse(request, 404, "EntryNotFound")
        return _send_file(request, repository, words[-1], body=body, redirect=f"/lfs/{model}/")


def _refuse(request: BaseHTTPRequestHandler, status: int, code: str) -> None:
    request.send_response(status)
    request.send_header("X-Error-Code", code)
    request.send_header("Content-Length", "0")
    request.end_headers()


def _send_json(request: BaseHTTPRequestHandler, value: object) -> None:
    data = json.dumps(value).encode()
    request.send_response(200)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data)


def _send_file(
    request: BaseHTTPRequestHandler,
    repository: Repository,
    name: str,
    *,
    body: bool,
    redirect: str | None = None,
) -> None:
    data, etag = repository.files[name], repository.etag(name)
    moved = redirect is not None and name.endswith(LARGE)
    asked = request.headers.get("Range")
    first = int(asked.removeprefix("bytes=").split("-")[0]) if asked else 0
    request.send_response(302 if moved else 206 if asked else 200)
    request.send_header("X-Repo-Commit", COMMIT)
    request.send_header("ETag", f'"{etag}"')
    if moved:
        request.send_header("X-Linked-Etag", f'"{etag}"')
        request.send_header("X-Linked-Size", str(len(data)))
        request.send_header("Location", f"{redirect}{name}")
    if asked:
        request.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
    request.send_header("Content-Length", "0" if moved else str(len(data) - first))
    request.end_headers()
    if moved or not body:
        return
    rest = data[first:]
    if repository.cut.get(name, 0) > 0:
        repository.cut[name] -= 1
        request.wfile.write(rest[: len(rest) // 2])
        request.wfile.flush()
        request.close_connection = True
        request.connection.shutdown(2)
        return
    request.wfile.write(rest)
