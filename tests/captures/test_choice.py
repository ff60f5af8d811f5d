from dataclasses import replace

import pytest

from headscape.captures.choice import choose_heads, choose_layer, choose_quantity
from headscape.errors import InputError
from plots.synthetic import alibi, capture


def test_numbers_count_from_0_and_negative_ones_from_the_end_of_what_was_captured():
    assert [choose_layer(n, (2, 5, 7)) for n in (2, 7, -1, -3)] == [2, 7, 7, 2]
    assert choose_heads(None, (1, 4)) == (1, 4)
    assert choose_heads([-1, 1], (1, 4)) == (4, 1)


@pytest.mark.parametrize("layer", [0, 8, -4])
def test_what_was_not_captured_is_refused(layer):
    with pytest.raises(InputError, match=rf"layer {layer} is not .* contains layer 2, 5, 7"):
        choose_layer(layer, (2, 5, 7))


def test_heads_are_listed_once_and_not_none():
    with pytest.raises(InputError, match=r"head 4 .* is listed twice"):
        choose_heads([4, -1], (1, 4))
    with pytest.raises(InputError, match="is empty"):
        choose_heads([], (1, 4))


def test_quantity_is_what_the_models_show():
    adds, none = capture(alibi(1, 4)), capture(alibi(1, 4), encoding="rope")
    assert choose_quantity(None, adds) == "bias"
    assert choose_quantity(None, none) == "final"
    assert choose_quantity(None, adds, none) == "final"
    assert choose_quantity("weights", none) == "weights"
    maps = {name: x for name, x in adds.maps.items() if name.endswith("weights")}
    assert choose_quantity(None, replace(adds, maps=maps)) == "weights"


@pytest.mark.parametrize("heads", ["0,3", 3])
def test_heads_must_be_a_list(heads):
    with pytest.raises(InputError, match=r"heads must be a list of numbers such as \[0, 3\], got"):
        choose_heads(heads, (0, 1, 2, 3))


@pytest.mark.parametrize("layer", ["last", 1.5])
def test_a_layer_must_be_a_whole_number(layer):
    with pytest.raises(InputError, match="layer must be a whole number, counted from 0, got"):
        choose_layer(layer, (0, 1))
