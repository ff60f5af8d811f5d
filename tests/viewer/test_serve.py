"""The loopback server: what it serves, what it refuses, and that it stays alive."""

import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headscape.errors import InputError
from headscape.viewer.viewer_answers import Answers
from viewer.packs import made, quantities

pytest.importorskip("starlette", reason="the server's extra (starlette, uvicorn) is missing")
pytest.importorskip("uvicorn", reason="the server's extra (starlette, uvicorn) is missing")

from headscape.viewer.serve import HEADERS, MOST_BODY, Server, serve
from pack_files import write

pytestmark = pytest.mark.usefixtures("module")


class Client:
    """Raw HTTP/1.1, so that nothing is corrected on the way."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def ask(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> tuple[int, dict[str, str], bytes]:
        given = {"Host": f"127.0.0.1:{self.server.port}", "Connection": "close", **(headers or {})}
        if body and "Content-Length" not in given:
            given["Content-Length"] = str(len(body))
        lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in given.items() if v), "", ""]
        return self.raw("\r\n".join(lines).encode() + body)

    def raw(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=30) as link:
            with contextlib.suppress(OSError):  # it may refuse before it has read everything
                link.sendall(data)
            received = b""
            try:
                while part := link.recv(1 << 16):
                    received += part
            except ConnectionResetError:
                pass
        head, _, body = received.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        found = dict(line.lower().split(": ", 1) for line in lines)
        return int(first.split()[1]), found, body

    def message(self, content: object, **headers: str) -> tuple[int, bytes]:
        given = {
            "Content-Type": "application/json",
            "X-Headscape-Token": self.server.token,
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        status, _, body = self.ask("POST", "/api/message", given, data)
        return status, body


@pytest.fixture
def client() -> Iterator[Client]:
    with Server(Answers.of([made(300)])) as server:
        yield Client(server)


def decoded(body: bytes) -> tuple[dict[str, Any], list[bytes]]:
    (size,) = struct.unpack("<I", body[:4])
    head = json.loads(body[4 : 4 + size])
    rest, buffers = body[4 + size :], []
    for length in head["buffers"]:
        buffers.append(rest[:length])
        rest = rest[length:]
    assert rest == b""
    return head["content"], buffers


TILE = {
    "type": "tile",
    "id": "p0",
    "layer": 0,
    "head": 1,
    "quantity": "weights",
    "minus": "nothing",
    "level": 0,
    "row": 0,
    "column": 0,
    "request": 1,
}


def alive(client: Client) -> None:
    status, body = client.message(TILE)
    assert status == 200
    _, (buffer,) = decoded(body)
    found = np.frombuffer(buffer, "<f4").reshape(256, 256)
    expected = quantities(made(300), 0, 1)["weights"][:256, :256]
    np.testing.assert_allclose(found, expected, atol=4e-6)


def test_the_page_and_its_answers(client: Client) -> None:
    status, headers, body = client.ask("GET", "/")
    assert status == 200
    assert headers["content-type"].startswith("text/html")
    assert b"ALiBi" not in body  # anybody on this computer can read the page
    assert client.server.token.encode() not in body
    for name, value in HEADERS.items():
        assert headers[name.lower()] == value.lower()
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe-inline" not in policy
    assert "unsafe-eval" not in policy.replace("wasm-unsafe-eval", "")
    assert re.findall(r"<script[^>]*>", body.decode()) == [
        '<script type="module" src="/viewer.js">'
    ]
    status, headers, body = client.ask("GET", "/viewer.js")
    assert (status, headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    token = {"X-Headscape-Token": client.server.token}
    status, _, body = client.ask("GET", "/api/packs", token)
    listed = json.loads(body)
    assert status == 200
    assert listed["can_run"] is False
    assert [each["title"] for each in listed["packs"]] == ["ALiBi"]
    assert listed["packs"][0]["header"]["length"] == 300
    alive(client)


def test_it_listens_on_loopback_alone(client: Client) -> None:
    assert client.server._socket.getsockname()[0] == "127.0.0.1"


def enter(client: Client, address: str) -> tuple[int, bytes]:
    """What a page does with the address that lets it in."""
    path = address.removeprefix(client.server.url.rstrip("/"))
    assert client.ask("GET", path)[0] == 200  # only looking, as a browser's prefetch does
    body = json.dumps({"code": path.rpartition("/")[2]}).encode()
    status, _, said = client.ask("POST", "/api/enter", {"Content-Type": "application/json"}, body)
    return status, said


def test_a_code_lets_one_browser_in(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    server, said = client.server, list[str]()
    monkeypatch.setattr(server, "_say", said.append)
    address = server.invite()
    assert server.token not in address
    assert server.url == f"http://127.0.0.1:{server.port}/"
    status, body = enter(client, address)
    assert (status, json.loads(body)) == (200, {"token": server.token})
    alive(client)
    assert said == []
    # The same code again: somebody else has read it, so whoever came first is shut out too.
    before = server.token
    status, body = enter(client, address)
    assert (status, server.token == before) == (403, False)
    assert before.encode() not in body
    assert client.message(TILE, X_Headscape_Token=before)[0] == 403
    assert "used twice" in said[0]
    newest = re.search(r"open (\S+) within", said[1])
    assert newest is not None
    assert enter(client, newest[1])[0] == 200


def test_a_code_lasts_a_minute(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headscape.viewer.serve.CODE_SECONDS", -1.0)
    assert enter(client, client.server.invite())[0] == 403
    monkeypatch.undo()
    for code in ("", "x" * 32, None, 3, [], "\ud800"):
        body = json.dumps({"code": code}).encode()
        kind = {"Content-Type": "application/json"}
        assert client.ask("POST", "/api/enter", kind, body)[0] == 403
    assert enter(client, client.server.invite())[0] == 200


def test_port_80_is_not_in_the_host(client: Client) -> None:
    client.server.port, port = 80, client.server.port
    try:
        assert client.server.url == "http://127.0.0.1/"
        lines = "GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port)) as link:
            link.sendall(lines.format("127.0.0.1").encode())
            assert link.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        client.server.port = port


def test_idle_connections_lock_nobody_out(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    address = ("127.0.0.1", client.server.port)
    with contextlib.ExitStack() as stack:
        for number in range(300):
            link = stack.enter_context(socket.create_connection(address))
            if number % 2:
                link.sendall(b"POST /api/message HTTP/1.1\r\n")
        alive(client)
    monkeypatch.setattr("headscape.viewer.serve.IDLE_SECONDS", 0.2)
    with socket.create_connection(address, timeout=5) as link:
        link.sendall(b"GET / HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert link.recv(1) == b""
    monkeypatch.setattr("headscape.viewer.serve.BODY_SECONDS", 0.2)
    late = f"POST /api/enter HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\n"
    late += "Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    assert client.raw(late.encode())[0] == 408


def test_a_client_that_leaves_and_odd_text(
    client: Client, capfd: pytest.CaptureFixture[str]
) -> None:
    head = f"POST /api/enter HTTP/1.1\r\nHost: 127.0.0.1:{client.server.port}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", client.server.port)) as half:
            half.sendall(head.encode())
            time.sleep(0.05)
    status, body = client.message(b'{"type": "tile", "request": "\\ud800"}')
    assert status == 200
    assert decoded(body)[0]["request"] == "\ud800"
    alive(client)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("path", ["/api/packs", "/api/message"])
@pytest.mark.parametrize(
    "token", ["", "wrong", "x" * 43, "é"], ids=["none", "wrong", "as long", "not ascii"]
)
def test_a_wrong_token_is_refused(client: Client, path: str, token: str) -> None:
    method = "POST" if path == "/api/message" else "GET"
    value = token.encode("utf-8").decode("latin-1")
    headers = {"X-Headscape-Token": value, "Content-Type": "application/json"}
    body = json.dumps(TILE).encode() if method == "POST" else b""
    data = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{client.server.port}\r\nConnection: close\r\n"
    )
    data += "".join(f"{k}: {v}\r\n" for k, v in headers.items() if v)
    data += f"Content-Length: {len(body)}\r\n\r\n"
    status, _, said = client.raw(data.encode("latin-1") + body)
    assert status == 403
    assert b"__metadata__" not in said
    assert client.server.token.encode() not in said


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:80"}, 421),
        ({"Host": "127.0.0.1"}, 421),
        ({"Host": "127.0.0.1:1"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://127.0.0.1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ],
)
@pytest.mark.parametrize("path", ["/", "/viewer.js", "/api/packs", "/api/message"])
def test_strangers_are_refused(
    client: Client, headers: dict[str, str], expected: int, path: str
) -> None:
    known = {"X-Headscape-Token": client.server.token, "Content-Type": "application/json"}
    method = "POST" if path == "/api/message" else "GET"
    body = json.dumps(TILE).encode() if method == "POST" else b""
    status, found, said = client.ask(method, path, {**known, **headers}, body)
    assert status == expected
    assert len(said) < 100
    assert "access-control-allow-origin" not in found


def test_its_own_page_is_welcome(client: Client) -> None:
    own = f"http://127.0.0.1:{client.server.port}"
    status, _ = client.message(TILE, Origin=own, Sec_Fetch_Site="same-origin")
    assert status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/static/../serve.py",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2fetc",
        "/viewer.js/../../serve.py",
        "//etc/passwd",
        "/api/../api/packs",
        "/serve.py",
        "/static/",
        "/api/files?path=/etc/passwd",
        "/\\..\\..\\etc",
        "/viewer.js%00.py",
        "/favicon.ico",
    ],
)
def test_paths_lead_nowhere(client: Client, path: str) -> None:
    status, _, body = client.ask("GET", path, {"X-Headscape-Token": client.server.token})
    assert status in {400, 404}
    assert b"root:" not in body
    assert b"import" not in body


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b"[" * 100_000, 400),
        (b"", 400),
        (b"NaN2", 400),
        (b'{"level": ' + b"9" * 5000 + b"}", 400),
        (b" " * (MOST_BODY + 1), 413),
        (b'{"text": "' + b"x" * (2 * MOST_BODY) + b'"}', 413),
    ],
    ids=["half", "bytes", "deep", "empty", "word", "digits", "blank", "large"],
)
def test_malformed_and_oversized_bodies(client: Client, body: bytes, status: int) -> None:
    length = {"Content_Length": str(len(body))} if not body else {}
    assert client.message(body, **length)[0] == status
    alive(client)


def test_other_ways_to_be_wrong(client: Client) -> None:
    assert client.message(TILE, Content_Type="text/plain")[0] == 415
    token = {"X-Headscape-Token": client.server.token}
    assert client.ask("GET", "/api/message", token)[0] == 405
    assert client.ask("DELETE", "/api/packs", token)[0] == 405
    assert client.raw(b"nonsense\r\n\r\n")[0] == 400
    assert client.raw(b"GET / HTTP/1.1\r\nX: " + b"y" * 200_000 + b"\r\n\r\n")[0] in {400, 431}
    with socket.create_connection(("127.0.0.1", client.server.port)) as half:
        half.sendall(
            b"POST /api/message HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\n{"
        )
    status, body = client.message({**TILE, "layer": 99})
    content, _ = decoded(body)
    assert status == 200
    assert content["type"] == "error"
    alive(client)


def run_clients(server: Server, seconds: float) -> int:
    """Ten clients ask and misbehave at once; the number of good answers."""
    until, good, failures = time.monotonic() + seconds, [], []
    expected = quantities(made(300), 0, 1)

    def work(number: int) -> None:
        client, random = Client(server), np.random.default_rng(number)
        try:
            while time.monotonic() < until:
                quantity = ("content", "bias", "final", "weights")[random.integers(4)]
                status, body = client.message({**TILE, "quantity": quantity})
                assert status == 200
                _, (buffer,) = decoded(body)
                found = np.frombuffer(buffer, "<f4").reshape(256, 256)
                np.testing.assert_allclose(found, expected[quantity][:256, :256], atol=4e-6)
                good.append(1)
                match random.integers(5):
                    case 0:
                        assert client.message(b"{")[0] == 400
                    case 1:
                        assert client.message(TILE, **{"X-Headscape-Token": "wrong"})[0] == 403
                    case 2:
                        assert client.ask("GET", "/../etc/passwd")[0] == 404
                    case 3:
                        assert client.message(TILE, Host="evil.example")[0] == 421
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=[number]) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    return len(good)


def test_ten_clients_at_once(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_clients(client.server, 2.0) > 10
    alive(client)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_ten_clients_for_a_minute(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_clients(client.server, 60.0) > 100
    alive(client)
    assert capfd.readouterr() == ("", "")


def test_a_capture_replaced_while_it_is_served(tmp_path: Path) -> None:
    from headscape.captures.capture_file import open_pack

    path = tmp_path / "a.safetensors"
    write(made(300), path)
    with Server(Answers.of([open_pack(path)])) as server:
        client = Client(server)
        alive(client)
        new = made(280, seed=4)
        write(new, path)
        _, body = client.message({**TILE, "row": 1})
        _, (buffer,) = decoded(body)
        found = np.frombuffer(buffer, "<f4").reshape(256, 256)
        expected = quantities(new, 0, 1)["weights"][256:, :256]
        np.testing.assert_allclose(found[:24], expected, atol=4e-6)
        path.write_bytes(path.read_bytes()[:5000])
        content, _ = decoded(client.message(TILE)[1])
        assert "not a whole safetensors file" in content["message"]
        path.unlink()  # what is left of it is no capture, which nothing replaces unasked
        write(made(300), path)
        alive(client)


def test_script_in_a_title_is_text() -> None:
    hostile = made(20, title="</title><script>alert(1)</script>", pieces=["<script>"] * 20)
    with Server(Answers.of([hostile])) as server:
        _, _, body = Client(server).ask("GET", "/")
    assert b"alert" not in body


def test_a_port_in_use_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} cannot be used .*: choose a"):
            Server(Answers.of([made(20)]), port=port)
    with pytest.raises(InputError, match="between 0 and 65535, got 70000"):
        Server(Answers.of([made(20)]), port=70000)


def test_no_display_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(Server, "run", Server.stop)
    serve(Answers.of([made(20)]))
    said = capsys.readouterr().err
    assert re.match(r"there is no display to open a browser on: open http://127\S+ within a", said)
    monkeypatch.setenv("BROWSER", "no-such-browser")
    monkeypatch.setattr("webbrowser.get", raising(webbrowser.Error()))
    serve(Answers.of([made(20)]))
    assert capsys.readouterr().err.startswith("no browser was found: open http://127")


def raising(error: Exception) -> Any:
    def function() -> None:
        raise error

    return function


def test_the_browser_gets_a_code_and_never_the_token(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    tokens: list[str] = []
    monkeypatch.setattr("headscape.viewer.serve._no_browser", lambda: None)
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(Server, "run", lambda self: (tokens.append(self.token), self.stop()))
    serve(Answers.of([made(20)]))
    while not opened:
        time.sleep(0.01)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/open/[\w-]{32}", opened[0])
    assert tokens[0] not in opened[0] + capsys.readouterr().err


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_a_missing_extra_is_told(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InputError, match=rf"needs {missing}: pip install 'headscape\[view\]'"):
        Server(Answers.of([made(20)]))


PROGRAM = """
import sys, threading
import headscape.viewer.serve as s
from headscape.errors import InputError
from headscape.viewer.viewer_answers import Answers
from viewer.packs import MODULE, made

class Run:
    ended = threading.Event()

    def __call__(self, text):
        print("running", file=sys.stderr, flush=True)
        self.ended.wait(60)
        raise InputError("cancelled.")

    def cancel(self):
        self.ended.set()

s.static_text = lambda _: MODULE
s.secrets.token_urlsafe = lambda size: "x" * size
s.serve(Answers.of([made(20)], [Run()]), open_browser=False)
print("ended")
"""


@pytest.mark.parametrize("busy", [False, True])
def test_ctrl_c_ends_it(tmp_path: Path, busy: bool) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    process = subprocess.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    found = re.fullmatch(r"open http://127\.0\.0\.1:(\d+)/open/x{24} within a minute; .*\n", line)
    assert found is not None
    with contextlib.ExitStack() as stack:
        if busy:
            body = json.dumps({"type": "run", "id": "p0", "text": "a"})
            link = stack.enter_context(socket.create_connection(("127.0.0.1", int(found[1]))))
            link.sendall(
                f"POST /api/message HTTP/1.1\r\nHost: 127.0.0.1:{found[1]}\r\n"
                f"Content-Type: application/json\r\nX-Headscape-Token: {'x' * 32}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
            )
            while process.stderr.readline() != "running\n":
                pass
        else:
            time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        out, rest = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "ended\n")
    assert "Traceback" not in rest
