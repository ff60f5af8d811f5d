"""What a host answers to the viewer's messages; the same for the server and the notebook.

    {type: "pack", id}                                     the pack's bytes
    {type: "tile", id, layer, head, quantity, minus,       mean, min, max: float32 [256 256]; one
       position, level, row, column, other: {id} | null}   buffer at level 0; minus another's
    {type: "values", id, layer, head, quantity, minus,     float64 [queries keys]
       position, queries: [a, b], keys: [c, d]}
    {type: "profile", id, layer, head, quantity,           float64: count, mean, std, min, max by
       position}                                           distance from `first`, mean by query
    {type: "run", id, text}                                a new pack of the text

Each message has a number `request`, which the answer repeats. A tile that is not exact has
`preview: true`, `exact` (the reductions that are) and, while a job computes it, `progress`
{done, left_seconds}. What cannot be served is {type: "error", request, message}.
Hidden pairs are NaN. Layers and heads count from 0. `position`, from 0 to 2 and 1 where absent,
multiplies the positional part of the scores.
"""

import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from headscape.call.quantities import QUANTITIES
from headscape.captures.capture_file import open_pack
from headscape.captures.overview_file import stamp
from headscape.captures.pack import Pack, pack_bytes
from headscape.captures.pooling import REDUCTIONS
from headscape.captures.scaled_position import LARGEST
from headscape.errors import InputError
from headscape.viewer.tiles import TILE, MapRequest, Tiles

MOST_VALUES: Final = 1 << 22
"""Values in one answer."""
WHOLE_BYTES: Final = 160_000_000
"""Packs up to this size are sent whole, if a page can compute them; others are served in tiles."""
MOST_TEXT: Final = 20_000
"""Characters of a text to run."""

Run = Callable[[str], Pack]
"""Runs a model on a text. One with a method `cancel` can be ended from a different thread."""
Answer = tuple[dict[str, Any], list[bytes]]


@dataclass(eq=False)
class Served:
    """One capture that a host shows."""

    id: str
    tiles: Tiles
    run: Run | None = None
    """Runs the capture's model on a new text."""
    stamp: str | None = None
    """What its file was when it was opened."""

    @property
    def whole(self) -> bool:
        """Whether the viewer gets all of it at once."""
        size = self.tiles.pack.page_bytes
        return size is not None and size <= WHOLE_BYTES

    def listed(self) -> dict[str, Any]:
        """The description that the viewer gets before it asks for data."""
        pack = self.tiles.pack
        # The viewer's Python line opens the file from where this process runs.
        source = {} if pack.path is None else {"source": str(pack.path)}
        return {
            "id": self.id,
            "title": pack.title,
            "header": {**pack.described, **source},
            "tiles": not self.whole,
        }


@dataclass(eq=False)
class Answers:
    """The captures of a host, and its answers to messages."""

    served: dict[str, Served] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _running: threading.Lock = field(default_factory=threading.Lock, init=False)

    @classmethod
    def of(cls, packs: Sequence[Pack], runs: Sequence[Run | None] | None = None) -> "Answers":
        """Answers for some packs; `runs` may give each a model to run."""
        answers = cls()
        for pack, run in zip(packs, runs or [None] * len(packs), strict=True):
            answers.add(pack, run)
        return answers

    def add(self, pack: Pack, run: Run | None = None) -> Served:
        """Show one more pack."""
        with self._lock:
            one = Served(f"p{len(self.served)}", Tiles(pack), run, _stamp(pack.path))
            self.served[one.id] = one
        return one

    @property
    def can_run(self) -> bool:
        """Whether any capture has a model to run."""
        return any(each.run is not None for each in self.served.values())

    def packs(self) -> list[dict[str, Any]]:
        """All captures, those whose file was replaced opened again."""
        return [self._fresh(each).listed() for each in list(self.served.values())]

    def answer(self, message: object) -> Answer:
        """The answer to one message, and its buffers; a mistake is answered in one sentence."""
        request = message.get("request") if isinstance(message, dict) else None
        known = request if isinstance(request, int | str) else None
        try:
            if not isinstance(message, dict):
                raise InputError("a message must be an object.")
            kind = message.get("type")
            kinds = {
                "pack": self._pack,
                "tile": self._tile,
                "values": self._values,
                "profile": self._profile,
                "run": self._run,
            }
            if not isinstance(kind, str) or kind not in kinds:
                raise InputError(f"unknown message type: choose from {', '.join(kinds)}.")
            content, buffers = kinds[kind](message)
        except InputError as error:
            return {"type": "error", "request": known, "message": str(error)}, []
        except Exception as error:  # noqa: BLE001 - the viewer goes on; the terminal has the rest
            traceback.print_exc()
            said = f"the viewer failed ({type(error).__name__}: {error}); its terminal says where."
            return {"type": "error", "request": known, "message": said}, []
        return {"type": kind, "request": known, **content}, buffers

    def cancel(self) -> None:
        """End models that run, where they can be ended; what waits for them gets an error."""
        for each in list(self.served.values()):
            cancel = getattr(each.run, "cancel", None)
            if cancel is not None:
                cancel()

    def stop(self) -> None:
        """End what runs in the background."""
        self.cancel()
        for each in self.served.values():
            each.tiles.stop()

    def _fresh(self, one: Served) -> Served:
        """The capture, opened again where its file was replaced."""
        path = one.tiles.pack.path
        if path is None or _stamp(path) in {one.stamp, None}:
            return one
        with self._lock:
            pack = open_pack(path)
            one.tiles.stop()
            one.tiles, one.stamp = Tiles(pack), _stamp(path)
        return one

    def _find(self, message: Mapping[str, Any]) -> Served:
        name = message.get("id")
        if not isinstance(name, str) or name not in self.served:
            raise InputError("this viewer does not show that capture: reload the page.")
        return self._fresh(self.served[name])

    def _pack(self, message: Mapping[str, Any]) -> Answer:
        one = self._find(message)
        if not one.whole:
            raise InputError("this capture cannot be sent whole: ask for tiles.")
        return {"id": one.id}, [pack_bytes(one.tiles.pack)]

    def _tile(self, message: Mapping[str, Any]) -> Answer:
        where = [_whole(message, name) for name in ("level", "row", "column")]
        one, asked = self._find(message).tiles, _map(message)
        other = message.get("other")
        if isinstance(other, dict):
            tile = one.difference(self._find(other).tiles, asked, *where)
        else:
            tile = one.tile(asked, *where)
        content: dict[str, Any] = {}
        if len(tile.exact) < len(REDUCTIONS):
            content = {"preview": True, "exact": list(tile.exact)}
        if tile.progress is not None:
            state = tile.progress
            content["progress"] = {"done": state.done, "left_seconds": state.left_seconds}
            if state.note is not None:
                content["progress"]["note"] = state.note
            if state.error is not None:
                raise InputError(f"the overview could not be computed: {state.error}.")
        kept = REDUCTIONS[:1] if where[0] == 0 else REDUCTIONS
        return content, [_square(tile.values[how]) for how in kept]

    def _values(self, message: Mapping[str, Any]) -> Answer:
        one = self._find(message)
        rows, cols = (_range(message, name, one.tiles.pack.length) for name in ("queries", "keys"))
        if (rows.stop - rows.start) * (cols.stop - cols.start) > MOST_VALUES:
            raise InputError(f"one message may ask for at most {MOST_VALUES} values.")
        values = one.tiles.values(_map(message), rows, cols, blank=np.nan)
        return {"shape": list(values.shape)}, [values.astype("<f8").tobytes()]

    def _profile(self, message: Mapping[str, Any]) -> Answer:
        profile = self._find(message).tiles.profile(_map(message))
        arrays = (
            profile.count, profile.mean, profile.std, profile.min, profile.max, profile.rows,
        )  # fmt: skip
        content: dict[str, Any] = {"first": profile.first}
        if not profile.complete:
            content["preview"] = True
        return content, [each.astype("<f8").tobytes() for each in arrays]

    def _run(self, message: Mapping[str, Any]) -> Answer:
        one, text = self._find(message), message.get("text")
        if one.run is None:
            raise InputError("this capture has no model to run: open a run or a model instead.")
        if not isinstance(text, str) or not text.strip():
            raise InputError("type a text to run.")
        if len(text) > MOST_TEXT:
            raise InputError(
                f"a typed text may have at most {MOST_TEXT:,} characters, got {len(text):,}: "
                f"capture a longer one to a file and view the file."
            )
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise InputError(
                "the text contains half of a surrogate pair, which is no character: type it again."
            )
        if not self._running.acquire(blocking=False):
            raise InputError("the model is reading a text already: wait until it is done.")
        try:
            made = self.add(one.run(text), one.run)
        finally:
            self._running.release()
        return {"id": made.id, "pack": made.listed()}, []


def _stamp(path: Path | None) -> str | None:
    """What changes with the file; None where there is none, as while it is being replaced."""
    try:
        return None if path is None else stamp(path)
    except OSError:
        return None


def _whole(message: Mapping[str, Any], name: str) -> int:
    value = message.get(name)
    if type(value) is not int or not 0 <= value < 1 << 40:
        raise InputError(f"{name} must be a whole number from 0.")
    return value


def _map(message: Mapping[str, Any]) -> MapRequest:
    quantity, minus = message.get("quantity"), message.get("minus", "nothing")
    if quantity not in QUANTITIES:
        raise InputError(f"quantity must be one of {', '.join(QUANTITIES)}.")
    layer, head = _whole(message, "layer"), _whole(message, "head")
    if minus not in ("nothing", "row", "distance"):
        raise InputError("minus must be nothing, row or distance.")
    position = message.get("position", 1)
    if type(position) not in (int, float) or not 0 <= position <= LARGEST:
        raise InputError(f"position must be a number from 0 to {LARGEST:g}.")
    return MapRequest(
        layer=layer, head=head, quantity=str(quantity), minus=minus, position=float(position)
    )


def _range(message: Mapping[str, Any], name: str, length: int) -> slice:
    value = message.get(name)
    good = isinstance(value, list) and len(value) == 2 and all(type(x) is int for x in value)
    if not good or not 0 <= value[0] <= value[1] <= length:  # type: ignore[index]
        raise InputError(f"{name} must be two token numbers within 0 and {length}.")
    return slice(value[0], value[1])  # type: ignore[index]


def _square(values: np.ndarray) -> bytes:
    """Float32 padded to a whole tile with NaN."""
    out = np.full((TILE, TILE), np.nan, dtype="<f4")
    out[: values.shape[0], : values.shape[1]] = values
    return out.tobytes()
