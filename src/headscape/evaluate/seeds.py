"""Which models may share a column: those that differ in their training seed alone."""

from collections.abc import Iterable
from typing import NamedTuple

from headscape.errors import InputError


class Member(NamedTuple):
    """A model as a column sees it."""

    method: str
    """The column."""
    recipe: str | None
    """SHA-256 of all that the model was trained with but its seed; None if that is not known."""
    seed: int | None
    length: int
    """Where it is measured; a model that is stretched to fit is another at every length."""
    model: str
    """SHA-256 of the model."""

    @property
    def name(self) -> str:
        """As an error calls it."""
        return self.method if self.seed is None else f"{self.method} with seed {self.seed}"


def check_seeds(members: Iterable[Member]) -> None:
    """Refuse models of one column that are no seeds of one another."""
    recipes: dict[str, str | None] = {}
    seen: dict[tuple[str, int | None, int], str] = {}
    for one in members:
        if recipes.setdefault(one.method, one.recipe) != one.recipe:
            raise InputError(
                f"two models called {one.method} were trained in different ways, so they are no "
                f"seeds of one another: evaluate them into tables of their own."
            )
        if seen.setdefault((one.method, one.seed, one.length), one.model) != one.model:
            raise InputError(
                f"two different models are both called {one.name}: evaluate them into tables of "
                f"their own."
            )
