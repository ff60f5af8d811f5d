"""Whose code the tests compare each encoding with.

Every encoding is also compared with a second implementation, written in numpy from the formulas
(tests/oracle). `tests/encodings/test_tested_against.py` checks this table against the vectors and
the live comparisons in tests/.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The code that one encoding is compared with; names are those of tests/golden/INDEX.md."""

    authors: str = ""
    """Code of the paper's authors that produced stored vectors."""
    others: tuple[str, ...] = ()
    """Other public code that produced stored vectors."""
    live: tuple[str, ...] = ()
    """Packages that run beside ours in a test."""

    @property
    def words(self) -> str:
        """The kinds of comparison, for a table: for example "authors, live"."""
        vectors = "authors" if self.authors else "others" if self.others else ""
        found = [vectors, "live" if self.live else ""]
        return ", ".join(word for word in found if word) or "formula"

    @property
    def sentence(self) -> str:
        """The comparisons in full."""
        parts = []
        if self.authors:
            parts.append(f"vectors that the authors' code produced ({self.authors})")
        if self.others:
            parts.append(f"vectors that other public code produced ({', '.join(self.others)})")
        if self.live:
            parts.append(f"{' and '.join(self.live)}, run in the test")
        parts.append("a second implementation from the formulas")
        alone = "" if len(parts) > 1 else " and nothing else"
        return f"Tested against {'; '.join(parts)}{alone}."


TRANSFORMERS, X_TRANSFORMERS = "transformers", "x-transformers"

TESTED: dict[str, Evidence] = {
    "nope": Evidence(others=(TRANSFORMERS,)),
    "learned": Evidence(others=(TRANSFORMERS,), live=(TRANSFORMERS,)),
    "sinusoidal": Evidence(others=("CABLE", "NeoX", TRANSFORMERS, X_TRANSFORMERS)),
    "rope": Evidence(others=("NeoX", "CABLE", TRANSFORMERS), live=(TRANSFORMERS, X_TRANSFORMERS)),
    "xpos": Evidence(live=(X_TRANSFORMERS,)),
    "pope": Evidence(others=(X_TRANSFORMERS,), live=(X_TRANSFORMERS,)),
    "selective-rope": Evidence(authors="Selective RoPE"),
    "carope": Evidence(),
    "repo": Evidence(authors="RePo"),
    "grape-m": Evidence(authors="GRAPE"),
    "path": Evidence(authors="FLA"),
    "wall": Evidence(others=("Wall",)),
    "alibi": Evidence(
        authors="ALiBi",
        others=("CABLE", "DAPE", TRANSFORMERS, X_TRANSFORMERS),
        live=(TRANSFORMERS, X_TRANSFORMERS),
    ),
    "t5": Evidence(others=(TRANSFORMERS,), live=(TRANSFORMERS, X_TRANSFORMERS)),
    "t5-clipped": Evidence(authors="CABLE"),
    "wavlm": Evidence(others=(TRANSFORMERS,)),
    "grid": Evidence(others=(TRANSFORMERS,), live=(TRANSFORMERS,)),
    "kerple": Evidence(authors="KERPLE"),
    "kerple-power": Evidence(authors="KERPLE"),
    "kerple-weight": Evidence(authors="KERPLE"),
    "bam": Evidence(authors="BAM"),
    "sandwich": Evidence(),
    "fire": Evidence(others=("DAPE", "CABLE")),
    "cable": Evidence(others=("a third party's port",)),
    "cable-nw": Evidence(authors="CABLE"),
    "k-cable": Evidence(authors="CABLE"),
    "fox": Evidence(others=("FLA",), live=(X_TRANSFORMERS,)),
    "cope": Evidence(live=(X_TRANSFORMERS,)),
    "stick-breaking": Evidence(authors="Stick-breaking"),
    "shaw": Evidence(others=("Music Transformer", TRANSFORMERS), live=(TRANSFORMERS,)),
    "transformer-xl": Evidence(others=(TRANSFORMERS,), live=(TRANSFORMERS,)),
    "deberta": Evidence(others=(TRANSFORMERS,), live=(TRANSFORMERS,)),
    "inkling": Evidence(others=(TRANSFORMERS, X_TRANSFORMERS), live=(TRANSFORMERS,)),
    "grape": Evidence(authors="GRAPE"),
    "dape": Evidence(authors="DAPE", others=("CABLE",)),
    "dapev2": Evidence(authors="DAPE"),
}
"""One row per encoding and wrapper of the package."""
