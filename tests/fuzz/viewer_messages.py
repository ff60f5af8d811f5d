"""Random and mutated messages to the viewer's server, every seed a message of its own.

    python -m fuzz.viewer_messages --inputs 10000 [--first 0]      (from the tests folder)

Whole messages with wrong fields, values of every JSON type, odd text, and damaged bytes go through
the application that the server runs. A finding is an answer with status 500, one that says that the
viewer failed, one that cannot be read back, and one that takes over SLOW seconds. Exits with 1 if
there is any.
"""

import asyncio
import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from fuzz.loop import main
from headscape.errors import InputError
from headscape.viewer.serve import Server
from headscape.viewer.viewer_answers import Answers
from viewer.packs import made

SLOW = 5.0
"""Seconds that a message may take."""
MAP = {"id": "p0", "layer": 0, "head": 1, "quantity": "weights", "minus": "nothing"}
MESSAGES: list[dict[str, Any]] = [
    {**MAP, "type": "tile", "level": 0, "row": 0, "column": 0, "other": None},
    {**MAP, "type": "tile", "level": 2, "row": 0, "column": 0, "other": {"id": "p1"}},
    {**MAP, "type": "tile", "level": 1, "row": 0, "column": 0, "minus": "distance"},
    {**MAP, "type": "values", "queries": [3, 9], "keys": [0, 5]},
    {**MAP, "type": "profile", "quantity": "bias"},
    {"type": "pack", "id": "p1"},
    {"type": "run", "id": "p0", "text": "hello"},
    {"type": "run", "id": "p0", "text": "refuse"},
]
VALUES: list[Any] = [
    None, True, False, 0, 1, 2, 7, -1, 1 << 39, 1 << 62, 10**300, 0.5, 1e308, float("nan"),
    float("inf"), "", "p0", "p1", "p9", "weights", "bias", "content", "final", "nothing", "row",
    "distance", "tile", "\ud800", "\x00", "é\u202e", "__class__", "x" * 300, [], [0], [0, 0],
    [0, 60], [59, 60], [60, 3], [-1, 5], [0.0, 1.0], [True, 2], [[0], 1], {}, {"id": "p1"},
    {"id": None}, {"id": ["p0"]}, {"id": {}}, [None] * 40,
]  # fmt: skip


def run(text: str) -> Any:
    """A model that refuses one text and is short with all others."""
    if text == "refuse":
        raise InputError("this text is refused.")
    return made(20)


def message_bytes(seed: int) -> bytes:
    """The body of one message."""
    draw = random.Random(seed)  # noqa: S311 - mutations, not secrets
    message: Any = dict(draw.choice(MESSAGES))
    message["request"] = draw.choice([seed, seed, *VALUES])
    for _ in range(draw.choice([0, 1, 1, 1, 2, 5])):
        name = draw.choice([*message, *MAP, "other", "text", "queries", "keys", "level", "é"])
        if draw.random() < 0.2:
            message.pop(name, None)
        else:
            message[name] = draw.choice(VALUES)
    if draw.random() < 0.05:
        message = draw.choice([*VALUES, [message]])
    data = bytearray(json.dumps(message).encode())
    if draw.random() < 0.2:
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(data))
            data[at : at + draw.randint(0, 3)] = draw.randbytes(draw.randint(0, 3))
            data = data or bytearray(b"0")
    return bytes(data)


class Application:
    """The server's application without its socket."""

    def __init__(self, server: Server) -> None:
        self._server, self._app = server, server.application()

    async def post(self, body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer to one message."""
        host = f"127.0.0.1:{self._server.port}".encode()
        headers = [
            (b"host", host),
            (b"content-type", b"application/json"),
            (b"x-headscape-token", self._server.token.encode()),
        ]
        scope = {
            "type": "http", "http_version": "1.1", "method": "POST", "path": "/api/message",
            "raw_path": b"/api/message", "query_string": b"", "headers": headers, "root_path": "",
            "scheme": "http", "server": ("127.0.0.1", self._server.port), "client": None,
        }  # fmt: skip
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(event: Any) -> None:
            sent.append(event)

        await self._app(scope, receive, send)
        parts = [event.get("body", b"") for event in sent if event["type"] == "http.response.body"]
        return int(sent[0]["status"]), b"".join(parts)


@contextmanager
def application() -> Iterator[Application]:
    """An application with two captures and a model to run."""
    answers = Answers.of([made(60, layers=2), made(40, kind="slope", lse=False)], [run, None])
    server = Server(answers)
    try:
        yield Application(server)
    finally:
        server.stop()


def check(app: Application, seed: int) -> str:
    """The kind of answer that one message gets; a finding raises AssertionError."""
    body = message_bytes(seed)
    started = time.perf_counter()
    # In a thread of its own: a test before this one may have left an event loop running.
    with ThreadPoolExecutor(1) as pool:
        status, answer = pool.submit(lambda: asyncio.run(app.post(body))).result()
    assert time.perf_counter() - started < SLOW, "slow"
    if status != 200:
        assert status == 400, f"status {status}: {answer[:200]!r}"
        assert answer == b"a message must be JSON", answer
        return "not JSON"
    size = int.from_bytes(answer[:4], "little")
    head = json.loads(answer[4 : 4 + size])
    assert len(answer) == 4 + size + sum(head["buffers"]), "buffers"
    content = head["content"]
    if content["type"] != "error":
        return str(content["type"])
    said = content["message"]
    assert "failed" not in said, said
    assert said.endswith("."), said
    assert "\n" not in said, said
    return "refused"


if __name__ == "__main__":
    with application() as app:
        main(__doc__, {"viewer messages": lambda seed: check(app, seed)}, inputs=10_000)
