"""What a caller asked for, checked in one place before anything is opened or computed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from headscape.errors import InputError, at_least
from headscape.evaluation.protocols import Protocol, parse
from headscape.evaluation.table.table_row import TASK, TEXT, known_quantity
from headscape.models.model import Model, Spec

TEXT_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
TEXT_ONLY = ("protocol", "same_tokens", "corpus", "limit")
EXAMPLES = 100


@dataclass(frozen=True, kw_only=True)
class Options:
    """The arguments of `evaluate`; None and () mean the default."""

    lengths: tuple[int, ...] = ()
    protocol: str | None = None
    same_tokens: bool = False
    quantity: str | None = None
    corpus: str | None = None
    limit: int | None = None
    task: str | None = None
    depths: tuple[float, ...] = ()
    examples: int | None = None
    batch_tokens: int = 8192

    def __post_init__(self) -> None:
        for length in self.lengths:
            at_least(1, **{"a length": length})
        at_least(1, limit=self.limit, examples=self.examples, batch_tokens=self.batch_tokens)
        for depth in self.depths:
            if not _is(depth, Real) or not 0 <= depth <= 1:
                raise InputError(f"a depth must be between 0 and 1, got {depth!r}.")
        if self.depths and self.task is None:
            raise InputError("depths need a heat map: name its task, passkey or needle.")
        for name in ("protocol", "quantity", "corpus", "task"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise InputError(f"{name} must be a string, got {value!r}.")
        # Files and journals take plain numbers only, not numpy's, and tell 0 from 0.0.
        object.__setattr__(self, "lengths", tuple(map(int, self.lengths)))
        object.__setattr__(self, "depths", tuple(map(float, self.depths)))
        object.__setattr__(self, "batch_tokens", int(self.batch_tokens))

    def check_for(self, models: Sequence[Model]) -> None:
        """Refuse options that do not apply to what these models are evaluated on."""
        on_task = self.on_task(models)
        known_quantity(self.quantity, TASK if on_task else TEXT)
        if not on_task and self.examples is not None:
            raise InputError("examples applies to tasks only: leave it out, or name a task.")
        for name in TEXT_ONLY if on_task else ():
            if getattr(self, name):
                raise InputError(f"{name} applies to text, and this is a task: leave it out.")
        _ = self.windows

    def on_task(self, models: Sequence[Model]) -> bool:
        """Whether the models answer questions instead of reading a text."""
        return self.task is not None or any(model.spec.task for model in models)

    @property
    def windows(self) -> Protocol:
        """How a text is cut into windows."""
        return parse(self.protocol or "nonoverlap")


def several(values: Any, name: str) -> tuple[Any, ...]:
    """Return a tuple of one value or of several; () for None."""
    if values is None:
        return ()
    if _is(values, Real):
        return (values,)
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"{name} must be a number or a list of numbers, got {values!r}.")
    found = tuple(values)
    if not found:
        raise InputError(f"{name} must contain at least one number, got none.")
    return found


def as_models(models: Any) -> list[Model]:
    """Return a list of one model or of several; anything else is refused."""
    given = list(models) if isinstance(models, list | tuple) else [models]
    if not given:
        raise InputError("evaluate needs at least one model, got none.")
    for one in given:
        if not isinstance(getattr(one, "spec", None), Spec):
            raise InputError(
                f"evaluate takes models, got {one!r}: open a run with headscape.load first."
            )
    return given


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
