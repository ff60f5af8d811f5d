"""Arguments of attention that do not fit together are refused by name."""

from types import SimpleNamespace

import pytest
import torch

from headscape.call.positions import Positions, Visible
from headscape.errors import InputError
from headscape.kernels.assemble import check

GROUP = torch.zeros(1, 5, dtype=torch.long)


def given(**changes: object) -> SimpleNamespace:
    """Consistent arguments with changes; AttentionCall itself checks shapes under pytest."""
    q = torch.zeros(2, 3, 5, 8)
    fits = {"q": q, "k": q, "v": q, "positions": Positions.span(5), "visible": Visible()}
    absent = ("bias", "mixing", "sink", "softcap", "temperature", "transition")
    fits |= dict.fromkeys(absent)
    return SimpleNamespace(**(fits | changes))


def test_what_fits_is_let_through() -> None:
    check(given())
    check(given(visible=Visible(True, GROUP, GROUP)))
    check(given(k=torch.zeros(2, 1, 5, 8), v=torch.zeros(2, 1, 5, 4)))
    check(given(sink=torch.zeros(3), softcap=1.0, temperature=torch.zeros(1, 3, 5)))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"q": torch.zeros(3, 5, 8)}, "q must have shape"),
        ({"q": torch.zeros(2, 3, 0, 8)}, "q must have shape"),
        ({"q": torch.zeros(2, 3, 5, 8, dtype=torch.long)}, "floating"),
        ({"k": torch.zeros(2, 3, 5, 4)}, "k must have shape"),
        ({"v": torch.zeros(1, 3, 5, 8)}, "v must have shape"),
        ({"v": torch.zeros(2, 1, 5, 8)}, "v has 1 heads"),
        ({"k": torch.zeros(2, 2, 5, 8)}, "k has 2 heads.* a divisor of 3"),
        ({"sink": torch.zeros(2)}, "sink must have shape"),
        ({"softcap": 0.0}, "softcap must be positive and finite, got 0.0"),
        ({"temperature": torch.zeros(1, 2, 5)}, "temperature must have shape"),
        ({"v": torch.zeros(2, 3, 4, 8)}, "k has 5 keys, but v has 4"),
        ({"v": torch.zeros(2, 3, 5, 8, dtype=torch.float16)}, "v is torch.float16"),
        ({"positions": Positions.span(4)}, "positions.q"),
        ({"positions": Positions.span(5, 9)}, "positions.k"),
        ({"visible": Visible(q_group=GROUP)}, "groups of both"),
        ({"visible": Visible(True, GROUP, GROUP[:, 1:])}, "visible.k_group"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        check(given(**changes))
