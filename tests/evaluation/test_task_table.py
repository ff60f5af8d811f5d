"""Accuracies in tables, files and plots."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from headscape.errors import InputError
from headscape.evaluation.row import EvaluationRow
from headscape.evaluation.table import Table


def score(method, length, exact, *, seed=0, **others):
    fields = {"task": "parity", "depth": None, "examples": 10, "questions": f"asked {length}"}
    fields |= {"symbols": exact, "model": f"{method} {seed}", "encoding": method.lower()}
    fields["recipe"] = "r"
    return EvaluationRow(method=method, length=length, exact=exact, seed=seed, **(fields | others))


def found_at(depth, length, exact, label="cable", **others):
    fields = {"task": "needle", "depth": depth, "label": label} | others
    return score("CABLE", length, exact, **fields)


def rows_of(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_seeds_become_mean_and_spread_in_table_and_plot():
    rows = [score("ALiBi", 41, value, seed=seed) for seed, value in enumerate((0.2, 0.4, 0.6))]
    rows += [score("RoPE", 41, 0.9), score("RoPE", 20, 0.0), score("ALiBi", 20, 0.004)]
    table = Table.of(rows)
    lines = table.to_markdown().splitlines()
    assert lines[:4] == [
        "| length | ALiBi | RoPE |",
        "|---:|---:|---:|",
        "| 20 | 0.00 | 0.00 |",
        "| 41 | 0.40 ± 0.20 | **0.90** |",
    ]
    assert r"41 & 0.40 $\pm$ 0.20 & \textbf{0.90} \\" in table.to_latex()
    assert "parity (regular): share of exact answers; 10 questions" in table.note("exact")
    assert "share of right symbols" in table.note("symbols")
    assert "commonest answer alone gets 0.50" in table.note("exact")
    assert "over 1-3 seeds" in table.note("exact")
    assert not table.plot().draw().axes[0].collections
    (axes,) = table.plot(bands=True).draw().axes
    line = next(line for line in axes.lines if line.get_label() == "ALiBi")
    assert np.allclose(line.get_ydata(), [0.004, 0.4])
    edges = axes.collections[0].get_paths()[0].vertices
    assert np.allclose(sorted(set(edges[edges[:, 0] == 41, 1])), [0.2, 0.6])


def test_the_plot_is_linear_and_marks_what_was_trained_and_what_needs_no_learning():
    table = Table.of([score("ALiBi", 4, 0.5), score("ALiBi", 90, None)])
    (axes,) = table.plot("symbols").draw().axes
    assert axes.get_yscale() == "linear"
    assert axes.get_ylabel() == "Right symbols, parity"
    (mark,) = [line for line in axes.lines if line.get_gid() == "trained"]
    assert set(mark.get_xdata()) == {40}
    (level,) = [line for line in axes.lines if line.get_gid() == "reference"]
    assert set(level.get_ydata()) == {0.5}
    assert axes.lines[0].get_xdata().tolist() == [4]


def test_a_band_of_accuracies_stays_between_0_and_1():
    rows = [score("ALiBi", 41, value, seed=seed) for seed, value in enumerate((0.0, 0.0, 1.0))]
    rows += [score("ALiBi", 20, value, seed=seed) for seed, value in enumerate((1.0, 1.0, 0.0))]
    (line,) = Table.of(rows).plot().lines
    assert (min(line.low), max(line.high)) == (0, 1)


def test_files_contain_the_numbers(tmp_path):
    rows = [score("ALiBi", 4, 0.25), score("RoPE", 4, None, refused="too long, it says")]
    paths = Table.of(rows).save_files(tmp_path)
    names = {f"tasks.{suffix}" for suffix in ("json", "csv", "md", "tex", "png", "svg", "pdf")}
    names |= {f"tasks-symbols.{suffix}" for suffix in ("png", "svg", "pdf")}
    assert {path.name for path in paths} == names
    assert all(path.stat().st_size for path in paths)
    assert Table.read(tmp_path).rows == tuple(rows)
    first, second = rows_of(tmp_path / "tasks.csv")
    assert (first["method"], first["exact"], first["symbols"]) == ("ALiBi", "0.25", "0.25")
    assert (second["exact"], second["refused"]) == ("", "too long, it says")
    assert "label" not in first


def test_evaluations_are_merged_and_kinds_are_not_mixed(tmp_path):
    one, two = score("ALiBi", 4, 0.25), score("ALiBi", 4, 0.75, seed=1)
    Table.of([one]).save(tmp_path / "a")
    Table.of([one, two]).save(tmp_path / "b")
    assert Table.read(tmp_path / "a", tmp_path / "b" / "tasks.json").rows == (one, two)
    text = EvaluationRow(
        method="m", length=8, protocol="p", corpus="c", text="t", model="h", loss=2.0
    )
    text = replace(text, tokens=8)
    Table.of([text]).save(tmp_path / "text")
    with pytest.raises(InputError, match=r"is about a task and .* about a text"):
        Table.read(tmp_path / "text", tmp_path / "a")
    with pytest.raises(InputError, match="use two tables"):
        Table.of([text, one])
    Table.of([text]).save(tmp_path / "a")
    with pytest.raises(InputError, match="contains two evaluations: choose"):
        Table.read(tmp_path / "a")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"task": "copy"}, "ALiBi was evaluated with task parity and ALiBi with copy"),
        ({"questions": "others"}, "were asked different questions at length 4"),
        ({"depth": 0.5}, "heat maps and accuracies by length"),
        ({"seed": 0}, "two different models are both called ALiBi with seed 0"),
        ({"recipe": "s"}, "configs differ in more than the seed"),
    ],
)
def test_scores_that_do_not_compare_are_refused(changes, complaint):
    one, two = score("ALiBi", 4, 0.25), score("ALiBi", 4, 0.75, seed=1)
    with pytest.raises(InputError, match=complaint):
        Table.of([one, replace(two, **changes)])


MAP = [found_at(depth, length, depth / 2) for length in (58, 70) for depth in (0.0, 1.0)]


def test_a_heat_map_writes_its_numbers_and_reads_back_under_its_name(tmp_path):
    other = [replace(row, label="b", model="other", exact=None) for row in MAP]
    table = Table.of([*MAP, *other])
    paths = table.save_files(tmp_path)
    assert len(paths) == len(set(paths)) == 2 * 5
    first = Table.read(tmp_path / "needle-cable.json")
    assert first.rows == tuple(MAP)
    assert list(first.maps()) == ["cable"]
    both = Table.read(tmp_path / "needle-cable.json", tmp_path / "needle-b.json")
    assert list(both.maps()) == ["cable", "b"]
    found = rows_of(tmp_path / "needle-b.csv")
    assert [(row["length"], row["depth"], row["exact"]) for row in found][1] == ("58", "1.0", "")


def test_a_heat_map_has_lengths_down_and_depths_across():
    lines = Table.of(MAP).to_markdown().splitlines()
    assert lines[0] == "| length | 0% | 100% |"
    assert lines[2:4] == ["| 58 | 0.00 | 0.50 |", "| 70 | 0.00 | 0.50 |"]
    note = "needle (retrieval): share of exact answers; CABLE, seed 0; 10 questions of each length"
    assert lines[-1] == f"{note} and depth."
    assert np.array_equal(Table.of(MAP).plot().accuracy, [[0, 0], [0.5, 0.5]])


def test_several_heat_maps_are_plotted_one_by_one():
    table = Table.of([*MAP, *(replace(row, label="b", model="other") for row in MAP)])
    with pytest.raises(InputError, match=r"2 heat maps: plot one, such as table\.maps\(\)"):
        table.plot()
    assert table.maps()["b"].plot().heading == "needle, CABLE, seed 0"
    assert table.to_markdown().count("| length |") == 2


def test_two_heat_maps_of_one_name_are_refused():
    with pytest.raises(InputError, match="two different heat maps are both called cable"):
        Table.of([*MAP, *(replace(row, model="other", exact=1.0) for row in MAP)])
