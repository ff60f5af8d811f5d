"""Connections of the viewer's server: none may stay open without doing anything.

All clients have one address, so a limit per address would say nothing. Instead a connection is
closed that has no request within IDLE_SECONDS or does not take its answer for as long, and beyond
MOST_CONNECTIONS the one that has been idle longest makes room for a new one. Idle connections can
therefore not lock anybody out.
"""

import time
from typing import Any, Final

MOST_CONNECTIONS: Final = 128
IDLE_SECONDS: Final = 10.0


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
