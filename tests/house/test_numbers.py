"""A number that stands on several pages is the same on all of them.

Measured numbers come from docs/data or from the tables of docs/results.md and docs/measured.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.second_results import settings

from docs.site import choosing, encoding_pages, far_positions
from headscape.call.positions import Positions
from headscape.encodings import build
from headscape.encodings.catalogue import TESTED
from headscape.evaluation.protocols import parse
from headscape.kernels import flex
from headscape.kernels.assemble import prepare
from headscape.training import preset

ROOT = Path(__file__).parents[2]


def page(name: str) -> str:
    """Return a page with every run of white space as one space."""
    return " ".join((ROOT / name).read_text().split())


def data(name: str) -> dict[str, Any]:
    return json.loads((ROOT / f"docs/data/{name}.json").read_text())


def rows(text: str, heading: str) -> dict[str, list[str]]:
    """Return the first table below a line that starts with `heading`: cells by first cell."""
    lines = text[text.index(f"\n{heading}") + 1 :].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    found = {}
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            return found
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        found[name] = cells
    return found


def test_the_readmes_growth_is_that_of_the_results() -> None:
    results = (ROOT / "docs/results.md").read_text()
    grown = rows(results, "## Growth past the training length")
    whole = rows(results, "## On all of the held-out text")
    seeds, readme = encoding_pages.extrapolation(results), page("README.md")
    rope, cable, alibi = (
        f"from {seeds[name]['512']} to {seeds[name]['8192']}".replace("**", "")
        for name in ("RoPE", "CABLE", "ALiBi")
    )
    assert f"RoPE's perplexity rises {rope} ({grown['RoPE'][3]} times)" in readme
    assert f"CABLE's goes {cable} and ALiBi's {alibi} (mean" in readme
    assert (
        f"4,096 tokens {whole['RoPE'][2]} times with seed 0, against {whole['RoPE'][3]}" in readme
    )
    assert f"(mean of three seeds: {grown['RoPE'][2]})" in readme


def test_the_readme_counts_the_tested_encodings() -> None:
    assert f"| {len(TESTED)}, each tested against" in page("README.md")


def test_the_readmes_heads_are_those_of_the_atlas() -> None:
    atlas, readme = page("docs/measured/atlas.md"), page("README.md")
    [found] = re.findall(r"\| 17 \| 1 \| ([\d.]+ \[[\d., ]+\]) \|", atlas)
    assert f"the clearest with {found} (layer 17, head 1;" in readme
    assert "for layer 17, head 1 it is 0.995" in atlas
    assert "(R2 0.995)" in readme


def test_the_speed_on_the_attention_page_is_the_measured_one() -> None:
    attention = (ROOT / "docs/measured/attention.md").read_text()
    reference = page("docs/attention.md")
    table = rows(attention, "The native path on two idle")
    ratios = [cells[3].split()[0] for name, cells in table.items() if name != "dapev2+kerple"]
    assert f"took {min(ratios)} to {max(ratios)} of `scaled_dot" in reference


def test_a_long_captures_memory_is_that_of_its_data() -> None:
    captures = data("captures")["rows"]
    table = rows(
        (ROOT / "docs/measured/attention.md").read_text(), "All four quantities in 512 x 512"
    )
    assert table == {
        name: [str(row["seconds"]), str(row["cpu"]), str(row["megabytes"])]
        for name, row in captures.items()
    }
    figures = page("docs/figures.md")
    said = re.findall(r"(\d+) MB (?:above the model's own memory )?with ([\w+]+)", figures)
    assert said
    for megabytes, name in said:
        assert captures[name.lower()]["megabytes"] == int(megabytes), name


def test_a_biased_models_step_is_that_of_its_data() -> None:
    steps = data("biased_models")
    attention = (ROOT / "docs/measured/attention.md").read_text()
    section = attention[attention.index("### Models with a bias against") :]
    seconds, memory = (rows(section, head) for head in ("| seconds |", "| MB of live tensors"))
    huggingface = page("docs/measured/huggingface.md")
    for name, row in steps["seconds"].items():
        times = [f"{row[key]:.1f}" for key in ("eager", "ours", "no attention")]
        sizes = [str(value) for value in steps["megabytes"][name].values()]
        assert seconds[name][:3] == times
        assert seconds[name][5] == f"{row['faster']:.1f}"
        assert memory[name][:3] == sizes
        if name in ("t5", "bloom"):
            layers = "2 + 2" if name == "t5" else "2"
            cells = [*times[:2], f"{row['faster']:.1f} x", *sizes[:2]]
            line = (
                f"| {name.upper()} type, training step of {layers} layers | {' | '.join(cells)} |"
            )
            assert line in huggingface
    assert len(re.findall(r"T5's step|step of T5|steps of BLOOM and T5", huggingface)) == 0
    faster = " and ".join(f"{steps['seconds'][name]['faster']:.1f}" for name in ("bloom", "t5"))
    assert f"type are {faster} times faster" in page("docs/huggingface.md")


def test_the_speed_on_the_huggingface_page_is_the_measured_one() -> None:
    measured = (ROOT / "docs/measured/huggingface.md").read_text()
    llama = measured[measured.index("| Llama type, 12 heads on 3, training step") :]
    [ratio] = re.findall(r"^\| \| 4,096 \| ([\d.]+) ", llama[: llama.index("GPT-2")], re.MULTILINE)
    assert f"at 4,096 tokens takes {ratio} of the time of sdpa" in page("docs/huggingface.md")


def test_the_size_of_a_long_capture_is_the_measured_one() -> None:
    size = "0.64 GB"
    assert f"the file has {size}" in page("docs/measured/pretrained.md")
    assert f"a file of {size}" in page("docs/pretrained.md")


def test_costs_on_the_attention_page_are_those_of_the_data() -> None:
    attention = (ROOT / "docs/measured/attention.md").read_text()
    costs = data("costs")["ratios"]
    heading = re.search(r"^\| tokens \| pope .*$", attention, re.MULTILINE)
    assert heading
    names = [name.strip() for name in heading[0].strip("|").split("|")][1:]
    for length, cells in rows(attention, "| tokens | pope").items():
        assert cells == [f"{costs[name][length]:.2f}" for name in names]
    variants = data("variants")["ratios"]
    ours = {"".join(f"| {value:.2f} " for value in variants.values()) + "|"}
    assert ours <= set(attention.splitlines())
    sticks, all_text = costs["stick-breaking"], page("docs/measured/attention.md")
    assert f"{sticks['512']:.2f} at 512 tokens and {sticks['2048']:.2f} at 2,048" in all_text
    assert f"at every key: {variants['sticks that last']:.2f} at 4,096" in all_text


def test_the_second_results_say_how_they_were_trained() -> None:
    assert page("docs/results.md").count(" ".join(settings(540).split())) == 1
    assert f"(the preset has {preset('nano').steps})" in settings(540).replace("\n", " ")


def test_every_measured_encoding_has_its_results_on_its_page() -> None:
    results = (ROOT / "docs/results.md").read_text()
    later, first = encoding_pages.growth(results), encoding_pages.extrapolation(results)
    assert len(rows(results, "## Newer encodings")) == 14
    for title in [name.strip("`") for name in rows(results, "## Newer encodings")]:
        section = encoding_pages.extrapolates(title, first, later)
        assert "Not among" not in section, title
        assert " | ".join(later[title]) in section


def test_the_changelog_counts_the_protocols_of_the_evaluation_page() -> None:
    table = rows((ROOT / "docs/evaluation.md").read_text(), "A window of length L reads")
    names = [name.strip("`") for name in table]
    for name in names:
        parse(name.replace("K", "4"))
    assert f"by {['no', 'one', 'two', 'three', 'four'][len(names)]} protocols" in page(
        "CHANGELOG.md"
    )


def test_the_readmes_diagnosis_is_that_of_its_page() -> None:
    table = rows(
        (ROOT / "docs/measured/diagnose.md").read_text(), "window; *more* is the difference"
    )
    more = {name.partition(" (")[0].partition(",")[0]: cells[1] for name, cells in table.items()}
    readme = page("README.md")
    grown, low, high = re.findall(r"[\d.]+", more["far"])
    assert f"the loss rises by {grown} nats [{low}, {high}]" in readme
    clipped, yarn, linear = (
        re.findall(r"[\d.]+", more[name])[0]
        for name in ("clipped positions", "YaRN", "linear interpolation")
    )
    assert (
        f"4,096 the rise is {clipped} nats, with YaRN {yarn}, with linear interpolation" in readme
    )
    assert f"interpolation {linear}." in readme


def test_the_picture_of_far_positions_is_that_of_its_table() -> None:
    drawn = (ROOT / "docs/images/far-positions.svg").read_text()
    found = far_positions.rows()
    assert len(found) == 11
    for name, (mean, _, _) in found.items():
        assert f">{name}</text>" in drawn, name
        assert f">{mean:.3f}</text>" in drawn, name


def test_the_table_for_choosing_is_that_of_results_and_costs() -> None:
    written = choosing.PAGE.read_text().split(choosing.START)[1].split(choosing.END)[0].strip()
    assert written == choosing.table(), "run python -m docs.site.choosing"
    assert f"RoPE grows by {encoding_pages.growth(results_page())['RoPE'][4]}." in page(
        "docs/choosing.md"
    )


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        (name, runs)
        for name, _, runs in choosing.ROWS.values()
        if runs.startswith("here") or "FlexAttention" in runs
    ],
)
def test_the_table_for_choosing_names_flexattention_where_it_runs(name: str, runs: str) -> None:
    encoding = build(name, heads=2, head_dim=4, width=8, train_length=16)
    q, k, v = torch.zeros(3, 1, 2, 16, 4).unbind()
    with torch.no_grad():
        call = prepare(encoding, q, k, v, torch.zeros(1, 16, 8), Positions.span(16, 16))
        assert ("FlexAttention" in runs) == (flex.refuses(call) is None)


def results_page() -> str:
    return (ROOT / "docs/results.md").read_text()
