"""A small server on loopback that shows captures: exact tiles on demand, from files or live models.

It listens on 127.0.0.1 alone and answers only requests that name it as their Host, come from its
own page (Origin) and carry its token. It serves the page, the viewer's module and answers to
messages (`answers`), no files by name. Bodies are limited in size and time, and every answer
forbids scripts other than the module.

The token is in no address. A browser is let in by an address with a code, `invite`, which anybody
who lists this computer's processes can read while the browser starts. So the code is good once and
for a minute: the page exchanges it for the token, which it keeps in the browser's storage for this
port and sends in a header. A code that comes twice was read by somebody else, perhaps first: the
token is then changed, which shuts everybody out, and a new address is printed.

No connection may stay open without doing anything. All clients have one address, so a limit per
address would say nothing. Instead a connection is closed that has no request within IDLE_SECONDS or
does not take its answer for as long, and beyond MOST_CONNECTIONS the one that has been idle longest
makes room for a new one. Idle connections can therefore not lock anybody out.
"""

import asyncio
import hmac
import json
import os
import secrets
import socket
import struct
import sys
import threading
import time
import webbrowser
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from headscape.errors import InputError
from headscape.viewer.page import MODULE, POLICY, page_script, server_page, static_text
from headscape.viewer.viewer_answers import Answers

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

ADDRESS: Final = "127.0.0.1"
MOST_BODY: Final = 1 << 20
"""Bytes of a request."""
BODY_SECONDS: Final = 30.0
"""Time that a request's body may take."""
HTTP_PORT: Final = 80
CODE_SECONDS: Final = 60.0
"""How long a code lets a browser in."""
SAY_SECONDS: Final = 5.0
"""Shortest time between two printed addresses."""
MOST_CONNECTIONS: Final = 128
IDLE_SECONDS: Final = 10.0
HEADERS: Final = {
    "Content-Security-Policy": (
        POLICY.format(script="'self'") + "; connect-src 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class RefusedError(Exception):
    """A request that is not answered, with its status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Server:
    """Serves some captures until it is stopped; also a context manager."""

    def __init__(
        self, answers: Answers, *, port: int | None = None, say: Callable[[str], None] | None = None
    ) -> None:
        """Bind to a port, by default a free one; `say` prints a line for the user."""
        try:
            import starlette  # noqa: F401
            import uvicorn  # noqa: F401
        except ImportError as error:
            raise InputError(
                f"the viewer's server needs {error.name}: pip install 'headscape[view]'."
            ) from error
        self.answers = answers
        self._say = say or (lambda _: None)
        self._said = -SAY_SECONDS
        self._codes: dict[str, float] = {}
        self._used: dict[str, float] = {}
        self.token = secrets.token_urlsafe(32)
        self._socket = _bind(port)
        self.port: int = self._socket.getsockname()[1]
        self._server: Any = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The address of the page, for browsers that have been let in."""
        return f"http://{self._hosts()[0]}/"

    def invite(self) -> str:
        """A new address that lets one browser in, once and within CODE_SECONDS."""
        now = time.monotonic()
        for codes in (self._codes, self._used):
            for code in [code for code, until in codes.items() if until < now]:
                del codes[code]
        code = secrets.token_urlsafe(24)
        self._codes[code] = now + CODE_SECONDS
        return f"{self.url}open/{code}"

    def _hosts(self) -> list[str]:
        """What browsers send as Host: without the port where it is that of http."""
        if self.port == HTTP_PORT:
            return [ADDRESS, "localhost"]
        return [f"{name}:{self.port}" for name in (ADDRESS, "localhost")]

    def run(self) -> None:
        """Serve until Ctrl-C."""
        try:
            self._uvicorn().run(sockets=[self._socket])
        except KeyboardInterrupt:
            pass
        finally:
            self.answers.stop()
            self._socket.close()

    def start(self) -> None:
        """Serve in a thread."""
        server = self._uvicorn()
        self._thread = threading.Thread(
            target=server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )
        self._thread.start()
        while not server.started and self._thread.is_alive():
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop serving and end background jobs."""
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(10)
        self.answers.stop()
        self._socket.close()

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _uvicorn(self) -> Any:
        import uvicorn

        answers = self.answers

        class Stopping(uvicorn.Server):
            """Cancels running models when asked to end, so that nothing has to be waited for."""

            def handle_exit(self, sig: int, frame: Any) -> None:
                answers.cancel()
                super().handle_exit(sig, frame)

        config = uvicorn.Config(
            self.application(),
            log_config=None,
            access_log=False,
            server_header=False,
            http=protocol(),
            limit_concurrency=256,
            timeout_graceful_shutdown=2,
            ws="none",
            lifespan="off",
            # asyncio's own loop: one way to run, whatever else is installed.
            loop="asyncio",
        )
        self._server = Stopping(config)
        return self._server

    def application(self) -> "Starlette":
        """The application, without a socket."""
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.requests import ClientDisconnect
        from starlette.routing import Route

        self._script = page_script(static_text(MODULE))
        routes = [
            Route("/", self._page),
            Route("/open/{code}", self._page),
            Route(f"/{MODULE}", self._module),
            Route("/api/enter", self._enter, methods=["POST"]),
            Route("/api/packs", self._packs),
            Route("/api/message", self._message, methods=["POST"]),
        ]
        errors = (RefusedError, InputError, HTTPException, ClientDisconnect)
        return Starlette(routes=routes, exception_handlers=dict.fromkeys(errors, _failed))

    async def _page(self, request: "Request") -> "Response":
        # The same for everybody: it contains nothing of a capture, and reading it uses no code up.
        self._refuse_strangers(request)
        return _response(server_page("/api", f"/{MODULE}"), "text/html")

    async def _enter(self, request: "Request") -> "Response":
        """Exchange a code for the token."""
        self._refuse_strangers(request)
        message = await _body(request)
        code = message.get("code") if isinstance(message, dict) else None
        now = time.monotonic()
        if isinstance(code, str) and self._codes.get(code, 0.0) >= now:
            self._used[code] = self._codes.pop(code)
            return _response(json.dumps({"token": self.token}), "application/json")
        if isinstance(code, str) and self._used.get(code, 0.0) >= now:
            del self._used[code]
            self.token = secrets.token_urlsafe(32)
            self._say(
                "An address was used twice, perhaps by somebody else on this computer. "
                "Nobody is let in by it any more."
            )
            self._said = -SAY_SECONDS
        raise self._not_let_in()

    async def _module(self, request: "Request") -> "Response":
        self._refuse_strangers(request)
        return _response(self._script, "text/javascript")

    async def _packs(self, request: "Request") -> "Response":
        from starlette.concurrency import run_in_threadpool

        self._admit(request)
        listed = await run_in_threadpool(self.answers.packs)
        body = {"packs": listed, "can_run": self.answers.can_run}
        return _response(json.dumps(body), "application/json")

    async def _message(self, request: "Request") -> "Response":
        from starlette.concurrency import run_in_threadpool

        self._admit(request)
        message = await _body(request)
        content, buffers = await run_in_threadpool(self.answers.answer, message)
        return _response(encode_answer(content, buffers), "application/octet-stream")

    def _admit(self, request: "Request") -> None:
        """Refuse a request from elsewhere or without the token."""
        self._refuse_strangers(request)
        token = request.headers.get("x-headscape-token", "")
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            raise self._not_let_in()

    def _not_let_in(self) -> RefusedError:
        """Print a new address, and say so to the browser that came without the token."""
        if time.monotonic() - self._said >= SAY_SECONDS:
            self._said = time.monotonic()
            self._say(f"To let one more browser in, open {self.invite()} within a minute.")
        return RefusedError(403, "open the newest address in the terminal that runs headscape")

    def _refuse_strangers(self, request: "Request") -> None:
        names = self._hosts()
        if request.headers.get("host") not in names:
            raise RefusedError(421, "wrong host")
        origin = request.headers.get("origin")
        if origin is not None and origin not in {f"http://{name}" for name in names}:
            raise RefusedError(403, "wrong origin")
        if request.headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
            raise RefusedError(403, "wrong site")


def protocol() -> Any:
    """Uvicorn's HTTP protocol with these limits; needs the extra `view`."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Connection(H11Protocol):
        """One connection."""

        def connection_made(self, transport: Any) -> None:
            """Make room where there is none, and start watching."""
            super().connection_made(transport)
            self.since = time.monotonic()
            self._seen: tuple[object, int] = (None, 0)
            others: list[Any] = [each for each in self.connections if each is not self]
            if len(others) >= MOST_CONNECTIONS:
                idle = [each for each in others if each.idle]
                chosen = min(idle, key=lambda each: each.since, default=self)
                # Removed at once: closing ends in a later turn of the loop.
                self.connections.discard(chosen)
                chosen.transport.abort()
            self._timer = self.loop.call_later(IDLE_SECONDS, self._look)

        def connection_lost(self, exc: Exception | None) -> None:
            """Stop watching."""
            self._timer.cancel()
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            """Idle from now on."""
            self.since = time.monotonic()
            super().on_response_complete()

        @property
        def idle(self) -> bool:
            """Whether no request is being answered."""
            return self.cycle is None or bool(self.cycle.response_complete)

        def _look(self) -> None:
            waiting = self.transport.get_write_buffer_size()
            before, self._seen = self._seen, (self.cycle, waiting)
            stuck = waiting > 0 and before == self._seen
            if (self.idle and time.monotonic() - self.since >= 0.9 * IDLE_SECONDS) or stuck:
                self.transport.abort()
            else:
                self._timer = self.loop.call_later(IDLE_SECONDS, self._look)

    return Connection


def _response(body: str | bytes, kind: str, status: int = 200) -> "Response":
    from starlette.responses import Response

    return Response(body, status, media_type=kind, headers=HEADERS)


async def _failed(_: "Request", error: Exception) -> "Response":
    """Answer in one sentence; an address or method that is not served has Starlette's status."""
    if hasattr(error, "status_code"):
        return _response("not here", "text/plain", error.status_code)
    return _response(str(error), "text/plain", getattr(error, "status", 400))


def encode_answer(content: dict[str, Any], buffers: list[bytes]) -> bytes:
    """uint32 length of a JSON text, the text {content, buffers: [bytes of each]}, the buffers."""
    sizes = [len(each) for each in buffers]
    text = json.dumps({"content": content, "buffers": sizes}).encode()
    return b"".join([struct.pack("<I", len(text)), text, *buffers])


def serve(answers: Answers, *, port: int | None = None, open_browser: bool = True) -> None:
    """Show captures until Ctrl-C; print the address where no browser can be opened."""
    server = Server(answers, port=port, say=_print)
    missing = _no_browser() if open_browser else None
    if open_browser and missing is None:
        _print(f"viewer at {server.url}")
        # The socket already listens, so the page may be asked for before the loop runs.
        threading.Thread(target=webbrowser.open, args=[server.invite()], daemon=True).start()
    else:
        why = f"{missing}: " if missing else ""
        _print(f"{why}open {server.invite()} within a minute; it lets one browser in.")
    _print("Press Ctrl-C to stop.")
    server.run()


def _print(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


async def _body(request: "Request") -> object:
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise RefusedError(415, "a message must be application/json")
    data = b""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                data += part
                if len(data) > MOST_BODY:
                    raise RefusedError(413, f"a message may have at most {MOST_BODY} bytes")
    except TimeoutError as error:
        raise RefusedError(408, f"a message must arrive within {BODY_SECONDS:g} s") from error
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, "a message must be JSON") from error


def _bind(port: int | None) -> socket.socket:
    if port is not None and not 0 <= port < 1 << 16:
        raise InputError(f"port must be between 0 and 65535, got {port}.")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((ADDRESS, port or 0))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise InputError(
            f"port {port} cannot be used ({error.strerror}): choose a different one."
        ) from error
    return listener


def _no_browser() -> str | None:
    """Return why no browser can be opened; None where one can."""
    bare = sys.platform.startswith("linux") and not os.environ.get("BROWSER")
    if bare and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return "there is no display to open a browser on"
    try:
        webbrowser.get()
    except webbrowser.Error:
        return "no browser was found"
    return None
