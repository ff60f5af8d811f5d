"""Models built to have a kind of head: the measures find it, and nothing else."""

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.call.definition import scores
from headscape.data.tasks.retrieval import RETRIEVAL
from headscape.errors import InputError
from headscape.measures.measure_model import measure_model
from headscape.measures.measures import Measures
from headscape.measures.probes import needle_scores
from measures import handmade

TOKENS = np.random.default_rng(1).integers(1, handmade.VOCABULARY, 400)


def measured(model: hs.Model, tokens: np.ndarray = TOKENS, **options: object) -> Measures:
    return measure_model(model, tokens, **{"length": 40, "sequences": 4, **options})


def test_a_previous_token_head() -> None:
    found = measured(handmade.previous_token())
    row = found.row(0, 0)
    assert row["kinds"] == ["previous token"]
    assert row["slash_distance"] == 1
    assert row["slash_score"] == pytest.approx(1.0)
    assert row["reach_50"] == row["reach_90"] == 1.0
    assert row["entropy"] == pytest.approx(0.0, abs=1e-9)
    assert row["entropy_growth"] == pytest.approx(0.0, abs=1e-9)
    assert row["position_share"] == pytest.approx(1.0)
    other = found.row(0, 1)
    assert other["kinds"] == []
    assert other["entropy_growth"] == pytest.approx(1.0)
    assert other["position_share"] is None, "one value everywhere: nothing varies"


def test_a_sink_head() -> None:
    tokens = TOKENS.copy()
    tokens[::40] = 0
    found = measured(handmade.sink(), tokens)
    row = found.row(0, 0)
    assert row["kinds"] == ["sink"]
    assert row["sink_score"] == pytest.approx(1.0)
    # Late queries of 40 tokens are 20 to 39, and the first key is i tokens away.
    assert row["reach_90"] == pytest.approx(29.5)
    assert row["reach_50_no_sink"] is None
    assert found.row(0, 1)["sink_score"] == pytest.approx(np.mean(1 / np.arange(21, 41)))


def test_an_induction_head() -> None:
    found = measured(handmade.induction())
    row = found.row(1, 0)
    # The first token copies itself, so one query of 20 finds two keys.
    assert row["induction"] == pytest.approx(1 - 0.5 / 20, abs=1e-6)
    assert row["duplicate_token"] == pytest.approx(0.5 / 20, abs=1e-6)
    assert row["kinds"] == ["induction"]
    first = found.row(0, 0)
    assert first["kinds"] == ["previous token"]
    assert first["induction"] < 1e-6


@pytest.mark.parametrize("head", [0, 5, 11])
def test_alibi_decays_by_its_slope(head: int) -> None:
    gpt2 = hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257)
    with torch.no_grad():
        for block in gpt2.blocks:
            block.attention.qkv.weight.zero_()
    model = hs.load(gpt2)
    row = measured(model, np.arange(200), sequences=2).row(0, head)
    bias = model.capture(list(range(9)), layers=0).bias(layer=0, head=head)
    slope = float(bias[8, 8] - bias[8, 7])
    assert row["decay"] == pytest.approx(slope, rel=1e-4)
    assert row["half_life"] == pytest.approx(np.log(2) / slope, rel=1e-4)
    assert row["position_share"] == pytest.approx(1.0)


def test_removing_the_position_of_a_head_is_what_it_says() -> None:
    """The effect equals the loss of a model whose table lacks that head's column."""
    gpt2 = hs.GPT2.from_preset("nano", encoding="t5", vocabulary=64, layers=2, train_length=64)
    with torch.no_grad():
        for layer in range(2):
            torch.nn.init.normal_(gpt2.encoding(layer).table.weight, std=3.0)
        for block in gpt2.blocks:
            block.attention.qkv.weight.mul_(6)
            block.attention.out.weight.mul_(12)
    model = hs.load(gpt2)
    tokens = TOKENS % 64
    found = measured(model, tokens, effects=4)
    starts = [number * 10 // 4 * 40 for number in range(4)]
    windows = torch.from_numpy(np.stack([tokens[at : at + 40] for at in starts]))
    before = model.losses(windows, 0).mean()
    for layer, head in ((0, 3), (1, 7)):
        column = gpt2.encoding(layer).table.weight[:, head]
        kept = column.detach().clone()
        with torch.no_grad():
            column.zero_()
            expected = float(model.losses(windows, 0).mean() - before)
            column.copy_(kept)
        row = found.row(layer, head)
        assert abs(expected) > 1e-5
        assert row["effect_removed"] == pytest.approx(expected, rel=1e-3, abs=1e-7)
        assert row["effect_kernel"] == 0.0


def test_removing_the_reflections_of_a_head_is_what_it_says() -> None:
    """The effect equals the loss of a model in which that head of PaTH reflects nothing."""
    gpt2 = hs.GPT2.from_preset("nano", encoding="path", vocabulary=64, layers=1, train_length=64)
    with torch.no_grad():
        attention = gpt2.blocks[0].attention
        attention.qkv.weight.mul_(12)
        attention.out.weight.mul_(12)
    model, tokens, head = hs.load(gpt2), TOKENS % 64, 3
    found = measured(model, tokens, effects=4).row(0, head)
    starts = [number * 10 // 4 * 40 for number in range(4)]
    windows = torch.from_numpy(np.stack([tokens[at : at + 40] for at in starts]))
    before = model.losses(windows, 0).mean()
    with torch.no_grad():
        gpt2.encoding().strength.weight[head] = 0.0
        gpt2.encoding().strength.bias[head] = -1e9
    expected = float(model.losses(windows, 0).mean() - before)
    assert abs(expected) > 1e-5
    assert found["effect_removed"] == pytest.approx(expected, rel=1e-3, abs=1e-7)


@pytest.mark.parametrize("name", ["selective-rope", "stick-breaking", "rope:chunk=7"])
def test_angles_of_tokens_and_own_weights_are_measured(name: str) -> None:
    gpt2 = hs.GPT2.from_preset("nano", encoding=name, vocabulary=64, layers=1, train_length=64)
    row = measured(hs.load(gpt2), TOKENS % 64, effects=1).row(0, 4)
    assert np.isfinite(row["entropy"])
    if name == "selective-rope":
        assert row.get("closed_form_r2") is None or np.isnan(row["closed_form_r2"])


def test_the_kernel_keeps_what_a_function_of_distance_does() -> None:
    """RoPE with constant queries and keys is a function of the distance: nothing changes."""
    gpt2 = hs.GPT2.from_preset("nano", encoding="rope", vocabulary=64, layers=1, train_length=64)
    with torch.no_grad():
        attention = gpt2.blocks[0].attention
        width = attention.qkv.weight.shape[1]
        attention.qkv.weight[: 2 * width].zero_()
        attention.qkv.bias[: 2 * width] = 2 * torch.randn(2 * width)
        attention.out.weight.mul_(30)
    row = measured(hs.load(gpt2), TOKENS % 64, effects=2).row(0, 4)
    assert abs(row["effect_removed"]) > 1e-4
    assert row["effect_kernel"] == pytest.approx(0.0, abs=1e-6)
    assert row["closed_form_r2"] == pytest.approx(1.0)


def test_an_untrained_model_finds_no_needle() -> None:
    model = hs.load(hs.GPT2.from_preset("nano", encoding="nope", vocabulary=257), tokenizer="bytes")
    found = needle_scores(model, 200, 3)
    assert found is not None
    assert found.shape == (2, 3, 12)
    # Untrained weights are nearly uniform over some 200 keys.
    np.testing.assert_allclose(found, 1 / 185, rtol=0.2)


def test_retrieval_is_the_weight_on_the_answers_own_tokens() -> None:
    gpt2 = hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257)
    model = hs.load(gpt2.double(), tokenizer="bytes")
    found = needle_scores(model, 200, 1)
    assert found is not None
    assert model.tokenizer is not None
    text, answer = RETRIEVAL["needle"].tokens_at(0, 0, 184, 0.1, model.tokenizer.encode)
    read = bytes(text.tolist())
    fact = read.rindex(bytes(answer.tolist()))
    every: dict[int, torch.Tensor] = {}
    tokens = torch.from_numpy(np.concatenate([text, answer]))[None]
    model.observe(tokens, [0, 1], lambda n, given: every.update({n: scores(given).weights[0]}))
    for layer, weights in every.items():
        # From the query before each token of the answer to the same token in the fact.
        looked = [weights[:, len(text) - 1 + n, fact + n] for n in range(len(answer))]
        np.testing.assert_allclose(found[layer, 0], sum(looked) / len(answer), rtol=1e-9)


def test_drift_is_measured_at_multiples_and_empty_past_a_table() -> None:
    options = {"vocabulary": 64, "layers": 1, "train_length": 16}
    rope = hs.load(hs.GPT2.from_preset("nano", encoding="rope", **options))
    found = measured(rope, TOKENS % 64, length=16, sequences=2, drift=(1, 2, 4))
    row = found.row(0, 0)
    assert row["entropy_4x"] > row["entropy_2x"] > row["entropy_1x"]
    changes = [
        abs(row[f"{name}_4x"] - row[f"{name}_1x"])
        for name in ("position_share", "slash_score", "sink_score")
    ]
    assert row["length_drift"] == pytest.approx(max(changes))
    learned = hs.load(hs.GPT2.from_preset("nano", encoding="learned", **options))
    row = measured(learned, TOKENS % 64, length=16, sequences=2, drift=(1, 2)).row(0, 0)
    assert row["entropy_1x"] is not None
    assert row["entropy_2x"] is None


def test_a_table_has_the_heads_of_one_kind() -> None:
    found = measured(handmade.previous_token())
    for kind in ("previous token", "previous", "Previous_Token"):
        rows = found.rows(kind=kind)
        assert rows
        assert all("previous token" in row["kinds"] for row in rows)
        assert len(rows) == sum("previous token" in row["kinds"] for row in found.rows())
    assert len(rows) < len(found.rows())
    assert found.to_csv(kind="prev").count("\n") == len(rows) + 1
    assert len(found.to_frame(kind="prev")) == len(rows)
    assert {row["head"] for row in found.top(kind="previous")} == {row["head"] for row in rows}
    assert found.to_markdown(1, "previous").count("\n") == len(rows) + 2
    assert str(found).splitlines()[0] == repr(found)
    assert "previous token: 0.0" in str(found)
    with pytest.raises(hs.InputError, match=r"no head is of kind 'retrieval'; .* previous token"):
        found.to_markdown(kind="retrieval")
    with pytest.raises(hs.InputError, match="'s' is not a kind of head: choose from previous"):
        found.rows(kind="s")


def test_tables_and_json_say_the_same() -> None:
    found = measured(handmade.previous_token())
    again = Measures.from_json(found.to_json())
    assert again.row(0, 0)["kinds"] == ["previous token"]
    for name, value in found.row(0, 1).items():
        other = again.row(0, 1)[name]
        assert other == (pytest.approx(value, rel=1e-5) if isinstance(value, float) else value)
    lines = found.to_csv(first=1).splitlines()
    assert lines[0].startswith("layer,head,position_share,position_share_low,")
    assert lines[1].startswith("1,1,")
    assert "| 0 | 0 | 1 | 1.00 | 1 |" in found.to_markdown()
    assert "| 1 | 1 | 1 | 1.00 | 1 |" in found.to_markdown(first=1)
    assert "previous token" in found._repr_html_()
    assert found.importance == "position_share"
    assert found.top(1, "slash_score")[0]["head"] == 0
    assert found.top(1, "slash_score", least=True)[0]["head"] == 1
    with pytest.raises(InputError, match="'nothing' was not measured"):
        found.top(measure="nothing")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 8}, "length must be at least 16 tokens, got 8"),
        ({"sequences": 0}, "sequences must be at least 1, got 0"),
        ({"sequences": 100}, "the text has 400 tokens, fewer than 100 sequences of 40 need"),
        ({"effects": 9}, "effects must be between 0 and 4 sequences, got 9"),
        ({"drift": (0,)}, "at least 1: got 0"),
        ({"corpus": "stdlib"}, "give a text or corpus stdlib, not both"),
    ],
)
def test_a_mistake_is_one_sentence(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        measured(handmade.sink(), **options)


def test_a_model_without_text_asks_for_one() -> None:
    with pytest.raises(InputError, match="has no text of its own: give a text or a corpus"):
        measure_model(handmade.sink())
