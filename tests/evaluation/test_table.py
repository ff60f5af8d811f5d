"""Tables: layout, best in bold, what cannot be, seeds, and what must not be mixed."""

import csv
import io
import statistics
import sys
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from headscape.errors import InputError
from headscape.evaluation.row import EvaluationRow
from headscape.evaluation.table import Table, along_window

BASE = EvaluationRow(
    method="ALiBi", length=8, protocol="nonoverlap", recipe="r", corpus="c", text="t",
    model="h", train_length=8, tokens=100, bytes=400, words=50, windows=10, loss=2.0, low=1.9,
    high=2.1, seed=0,
)  # fmt: skip


def at(method, length, loss, seed=0):
    return replace(
        BASE, method=method, length=length, loss=loss, seed=seed, model=f"{method}{seed}"
    )


CANNOT = replace(
    BASE, method="Learnable", length=16, loss=None, low=None, high=None, refused="too long"
)
ROWS = [
    at("ALiBi", 8, np.log(20.5)),
    at("ALiBi", 16, np.log(20.0)),
    at("Learnable", 8, np.log(19.25)),
    CANNOT,
]


def test_markdown_is_the_papers_layout():
    lines = Table.of(ROWS).to_markdown().splitlines()
    assert lines[0] == "| length | ALiBi | Learnable |"
    assert lines[2] == "| 8 | 20.50 | **19.25** |"
    assert lines[3] == "| 16 | **20.00** | - |"
    assert "protocol nonoverlap" in lines[-1]
    assert "trained at 8" in lines[-1]


def test_latex_has_the_same_cells():
    rows = [*ROWS, at("CABLE_NW", 8, np.log(30))]
    lines = Table.of(rows).to_latex().splitlines()
    assert lines[0].startswith("% perplexity by protocol nonoverlap")
    assert r"Length & ALiBi & Learnable & CABLE\_NW \\" in lines
    assert r"8 & 20.50 & \textbf{19.25} & 30.00 \\" in lines
    assert r"16 & \textbf{20.00} & - &  \\" in lines


def test_csv_holds_every_measurement_with_its_interval():
    rows = list(csv.DictReader(io.StringIO(Table.of(ROWS).to_csv())))
    assert [row["method"] for row in rows] == ["ALiBi", "ALiBi", "Learnable", "Learnable"]
    assert float(rows[0]["perplexity"]) == pytest.approx(20.5)
    assert float(rows[0]["low"]) == pytest.approx(np.exp(1.9))
    assert rows[3]["refused"] == "too long"
    assert rows[3]["perplexity"] == ""


def test_the_note_says_how_much_text_was_scored():
    assert "; 100 tokens scored;" in Table.of(ROWS).note()
    more = replace(at("ALiBi", 32, 2.0), tokens=2048)
    assert "; 100 to 2,048 tokens scored;" in Table.of([*ROWS, more]).note()


def test_seeds_are_a_mean_and_a_spread():
    values = [10.0, 11.0, 13.0]
    table = Table.of([at("CABLE", 8, np.log(v), seed) for seed, v in enumerate(values)])
    cell = table.cell("CABLE", 8)
    assert cell.mean == pytest.approx(statistics.mean(values))
    assert cell.spread == pytest.approx(statistics.stdev(values))
    assert cell.count == 3
    assert "**11.33** ± 1.53" in table.to_markdown()
    assert "over 3 seeds" in table.note()


@pytest.mark.parametrize("changes", [{"protocol": "last-256"}, {"longest": 16}, {"text": "u"}])
def test_numbers_that_do_not_compare_are_refused(changes):
    with pytest.raises(InputError, match="cannot be compared"):
        Table.of([BASE, replace(BASE, method="RoPE", model="g", **changes)])
    with pytest.raises(InputError, match=r"cannot be compared|two texts"):
        Table.of([BASE, replace(BASE, **changes)])


def test_a_text_may_go_by_two_names():
    assert len(Table.of([BASE, replace(BASE, method="RoPE", corpus="d")]).methods) == 2


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"recipe": "s", "model": "g", "seed": 1},
            "configs differ in more than the seed, so they cannot be averaged",
        ),
        (
            {"recipe": "s", "length": 16},
            "configs differ in more than the seed, so they cannot be averaged",
        ),
        ({"model": "g"}, "both called ALiBi with seed 0: evaluate"),
    ],
)
def test_only_seeds_of_one_another_share_a_column(changes, complaint):
    with pytest.raises(InputError, match=complaint):
        Table.of([BASE, replace(BASE, **changes)])
    elsewhere = replace(BASE, seed=None, recipe=None)
    with pytest.raises(InputError, match="two different models are both called ALiBi: evaluate"):
        Table.of([elsewhere, replace(elsewhere, model="g")])


def test_a_measurement_given_twice_counts_once():
    table = Table.of([BASE, BASE])
    assert table.cell("ALiBi", 8).count == 1
    assert "±" not in table.to_markdown()


def test_no_bytes_no_bits_per_byte():
    with pytest.raises(
        InputError, match="does not say which bytes its tokens are, so bits-per-byte"
    ):
        Table.of([replace(BASE, bytes=None)], "bits-per-byte")


def test_other_tokens_compare_by_the_byte():
    other = replace(BASE, method="hf", model="g", text="u")
    assert Table.of([BASE, other], "bits-per-byte").methods == ["ALiBi", "hf"]


def test_nothing_is_refused_and_so_is_an_unknown_quantity():
    with pytest.raises(InputError, match="a table needs at least one row"):
        Table.of([])
    with pytest.raises(InputError, match="unknown quantity 'ppl'"):
        Table.of([BASE], "ppl")


def test_files_round_trip_and_read_merges_each_once(tmp_path):
    folder = Table.of(ROWS).save(str(tmp_path / "a"))
    assert folder == tmp_path / "a"
    paths = sorted(folder.iterdir())
    assert sorted(Table.of(ROWS).save_files(folder)) == paths
    assert {path.suffix for path in paths} == {
        ".json", ".csv", ".md", ".tex", ".png", ".svg", ".pdf"
    }  # fmt: skip
    assert all(path.stat().st_size for path in paths)
    assert Table.read(tmp_path / "a" / "evaluation.json").rows == tuple(ROWS)
    Table.of([*ROWS, at("ALiBi", 8, 3.0, seed=1)]).save(tmp_path / "b")
    merged = Table.read(tmp_path / "a", tmp_path / "b" / "evaluation.json")
    assert len(merged.rows) == len(ROWS) + 1
    assert merged.cell("ALiBi", 8).count == 2
    assert Table.read(tmp_path / "a", quantity="loss").quantity == "loss"


def test_the_same_rows_give_the_same_bytes(tmp_path):
    first, second = (Table.of(ROWS).save_files(tmp_path / name) for name in "ab")
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_positions_survive_the_file(tmp_path):
    row = replace(BASE, protocol="per-position", by_position=(0.1, 1 / 3, 5e-324))
    (tmp_path / "x.json").write_text(Table.of([row]).to_json())
    assert Table.read(tmp_path / "x.json").rows == (row,)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "is not JSON"),
        ("[]", "contains no measurements"),
        ('{"format": 9, "measurements": []}', "has format 9; this version reads 2"),
        ('{"format": 2, "measurements": [3]}', "measurements is not a list of objects"),
        ('{"format": 2, "measurements": [{"method": "m"}]}', "see its field 'by_position'"),
        ('{"format": 2, "measurements": []}', "needs at least one row"),
        ('{"format": 9, "scores": []}', "has format 9; this version reads 1"),
        ('{"format": 1, "scores": [{"method": "a"}]}', "see its field 'depth'"),
    ],
)
def test_bad_files_are_refused_in_a_sentence(content, complaint, tmp_path):
    path = tmp_path / "evaluation.json"
    path.write_text(content)
    with pytest.raises(InputError, match=complaint):
        Table.read(path)


def test_missing_files_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*none\.json"):
        Table.read(tmp_path / "none.json")
    with pytest.raises(InputError, match=r"contains no evaluation\.json or tasks\.json"):
        Table.read(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"loss": 2.0', '"loss": "2.0"', r"loss='2\.0' is not of type"),
        ('"by_position": null', '"by_position": ["x"]', "by_position contains a non-numeric"),
    ],
)
def test_a_field_of_a_different_type_is_refused_in_a_sentence(tmp_path, old, new, complaint):
    path = tmp_path / "evaluation.json"
    path.write_text(Table.of([BASE]).to_json().replace(old, new))
    with pytest.raises(InputError, match=rf"evaluation\.json is damaged: {complaint}"):
        Table.read(path)


def test_a_table_shows_itself_in_a_notebook():
    rows = [*ROWS, at("a<b", 8, np.log(30))]
    html = Table.of(rows)._repr_html_()
    assert '<th scope="col">a&lt;b</th>' in html
    assert (
        '<tr><th scope="row">8</th><td>20.50</td><td><b>19.25</b></td><td>30.00</td></tr>' in html
    )
    assert "protocol nonoverlap" in html
    assert repr(Table.of(ROWS)) == "Table(perplexity of ALiBi, Learnable at length 8 to 16)"


def test_a_frame_has_the_columns_of_the_csv():
    pandas = pytest.importorskip("pandas")
    table = Table.of(ROWS)
    frame = table.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert ",".join(frame.columns) == table.to_csv().splitlines()[0]
    assert frame["method"].tolist() == [row.method for row in ROWS]
    assert frame["length"].tolist() == [row.length for row in ROWS]
    assert frame["perplexity"][0] == pytest.approx(20.5)
    assert frame["perplexity"].isna().tolist() == [row.loss is None for row in ROWS]


def test_a_frame_without_pandas_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"to_frame needs pandas.*`pip install pandas`"):
        Table.of(ROWS).to_frame()


def test_losses_and_bits_have_three_decimals_and_large_numbers_few_digits():
    table = Table.of([at("ALiBi", 8, 2.0)], "loss")
    assert "**2.000**" in table.to_markdown()
    assert table.to_csv().splitlines()[0].split(",").count("loss") == 1
    assert "**1.17e+08**" in Table.of([at("ALiBi", 8, 9.2873)], "word-perplexity").to_markdown()


def test_texts_of_other_sizes_do_not_compare_by_the_byte():
    other = replace(BASE, method="hf", model="g", text="u", bytes=300)
    with pytest.raises(InputError, match="scored on 400 bytes and hf on 300"):
        Table.of([BASE, other], "bits-per-byte")
    shorter = replace(BASE, text="u", bytes=390)
    with pytest.raises(InputError, match="ALiBi was scored on two texts at length 8"):
        Table.of([BASE, shorter], "bits-per-byte")


def test_the_plot_has_a_line_per_method_and_marks_the_training_length():
    figure = Table.of(ROWS).plot().draw()
    (axes,) = figure.axes
    assert axes.get_yscale() == "log"
    lines = {line.get_label(): line for line in axes.lines}
    assert lines["ALiBi"].get_xdata().tolist() == [8, 16]
    assert lines["ALiBi"].get_ydata() == pytest.approx([20.5, 20.0])
    assert lines["Learnable"].get_xdata().tolist() == [8]
    (mark,) = [line for line in axes.lines if line.get_gid() == "trained"]
    assert set(mark.get_xdata()) == {8}
    assert axes.get_ylabel() == "Perplexity (nonoverlap)"


def test_an_infinite_perplexity_is_printed_and_not_drawn_to():
    table = Table.of([at("ALiBi", 8, 2.0), at("ALiBi", 16, 800.0)])
    assert "inf" in table.to_markdown()
    figure = table.plot().draw()
    assert np.isfinite(figure.axes[0].get_ylim()).all()


def test_what_is_not_a_number_says_so_and_is_never_best():
    rows = [at("ALiBi", 8, 2.0), at("RoPE", 8, float("nan")), at("FIRE", 8, 800.0)]
    rows += [at("FIRE", 8, 2.0, seed=1)]
    assert Table.of(rows).to_markdown().splitlines()[2] == "| 8 | **7.39** | nan | inf |"


def test_loss_along_the_window_is_binned_and_averaged_over_seeds(tmp_path):
    losses = np.random.default_rng(0).random((2, 40)) + 1
    rows = [
        replace(at("ALiBi", 40, 2.0, seed), protocol="per-position", by_position=tuple(values))
        for seed, values in enumerate(losses.tolist())
    ]
    (line,) = along_window(rows).lines
    mean = losses.mean(axis=0)
    assert line.values[:2] == pytest.approx(mean[:2])
    assert line.lengths[:2] == [1, 2]
    start = 0
    for centre, value in zip(line.lengths, line.values, strict=True):
        count = round(2 * (centre - start) - 1)
        assert value == pytest.approx(mean[start : start + count].mean())
        start += count
    assert start == 40
    names = {path.name for path in Table.of(rows).save(tmp_path).iterdir()}
    assert "positions.svg" in names


def test_values_close_together_still_have_labels():
    rows = [at("ALiBi", 8, np.log(17.2)), at("ALiBi", 16, np.log(18.1))]
    figure = Table.of(rows).plot().draw()
    figure.canvas.draw()
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    shown = [tick for tick in axes.get_yticks() if low <= tick <= high]
    assert len(shown) >= 3


def test_lines_of_several_tables_share_axes_of_ones_own():
    axes = Figure().subplots()
    Table.of([at("ALiBi", 8, 2.0), at("ALiBi", 16, 2.1)]).plot(ax=axes)
    Table.of([at("RoPE", 8, 2.0), at("RoPE", 32, 3.0)]).plot(ax=axes, bands=True)
    lines = [line for line in axes.lines if line.get_gid() == "line"]
    assert [line.get_label() for line in lines] == ["ALiBi", "RoPE"]
    assert len({line.get_color() for line in lines}) == 2
    assert [tick for tick in axes.get_xticks() if tick <= 32] == [8, 16, 32]
    assert len(axes.collections) == 1
    assert [text.get_text() for text in axes.get_legend().texts] == ["ALiBi", "RoPE"]
