"""lm-eval, on an exported model and a local text, gives the loss that `evaluate` gives."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import transformers

import headscape as hs
import headscape.huggingface
from headscape.data.dataset import open_dataset
from headscape.huggingface.export import write_export as export_module
from huggingface.export_cases import case_model

LENGTH = 48
TASK = """
task: local_text
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list:
  - metric: bits_per_byte
  - metric: byte_perplexity
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["learned", "rope", "alibi", "cable", "fire", "dapev2+kerple"])
def test_lm_eval_gives_our_loss(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prefix of lm-eval is the first token, so both predict every token behind it.

    The text is a whole number of windows long, because lm-eval scores a part of a window too. A
    token is a byte here, so bits per byte are bits per token.
    """
    models = pytest.importorskip(
        "lm_eval.models.huggingface",
        reason="lm-eval is not installed: pip install 'lm-eval[hf]'",
        exc_type=ImportError,
    )
    import lm_eval
    from lm_eval.tasks import TaskManager

    monkeypatch.setenv("HEADSCAPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(export_module, "write_picture", lambda model, part: None)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for n in range(40):
        words = " ".join(f"{(7 * n + k) % 53} cats" for k in range(60))
        (corpus / f"{n:02}.txt").write_text(words)
    ours = hs.load(case_model(name), tokenizer="bytes")
    stream = np.asarray(open_dataset(str(corpus), ours.tokenizer).validation)
    end = int(np.flatnonzero(stream == 256)[0])  # lm-eval reads texts, so one document
    whole = (end - 1) // LENGTH * LENGTH
    table = hs.evaluate(ours, corpus=corpus, lengths=LENGTH, limit=whole + 1, quantity="loss")
    assert table.rows[0].tokens == whole
    text = bytes(stream[1 : whole + 1].tolist()).decode()
    (tmp_path / "data.jsonl").write_text(json.dumps({"text": text}) + "\n")
    (tmp_path / "task.yaml").write_text(TASK.format(data=tmp_path / "data.jsonl"))
    folder = hs.export(ours, tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    lm = models.HFLM(pretrained=model, tokenizer=tokenizer, prefix_token_id=int(stream[0]))
    assert lm.max_length == LENGTH  # it reads max_position_embeddings
    found = lm_eval.simple_evaluate(
        model=lm,
        tasks=["local_text"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
        verbosity="ERROR",
    )
    nats = found["results"]["local_text"]["bits_per_byte,none"] * math.log(2)
    assert abs(nats - table.rows[0].loss) < 1e-5
