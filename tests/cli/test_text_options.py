"""Every command that reads a text takes it as --prompt or as --text."""

import json
from pathlib import Path

import pytest

TEXT = "".join(f"line {n} of {n % 7} things\n" for n in range(60))

COMMANDS = {
    "capture": ["--out", "{out}/cap.safetensors"],
    "view": ["--html", "{out}/page.html"],
    "measure": ["--sequences", 2, "--length", 16, "--out", "{out}/heads.json"],
    "atlas": ["--sequences", 2, "--length", 16, "--out", "{out}"],
    "evaluate": ["--lengths", 32, "--out", "{out}"],
    "generate": ["--length", 2],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_text_comes_as_a_prompt_or_a_file(
    name: str, call, small_run: Path, tmp_path: Path
) -> None:
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    made = []
    for way, given in (("--prompt", TEXT), ("--text", str(file))):
        folder = tmp_path / way[2:]
        folder.mkdir()
        options = [str(word).replace("{out}", str(folder)) for word in COMMANDS[name]]
        done = call(name, small_run, way, given, *options)
        assert done.exit_code == 0, done.output
        made.append((done, folder))
    both = call(name, small_run, "--prompt", "a", "--text", str(file), *options)
    assert "give --prompt or --text" in str(both.exception)
    first, second = made
    if name == "generate":
        assert first[0].stdout == second[0].stdout
        assert first[0].stdout.startswith(TEXT)
    if name == "evaluate":
        rows = [json.loads((one[1] / "evaluation.json").read_text()) for one in made]
        assert rows[0] == rows[1]


def test_a_generated_and_a_chat_capture(call, small_run: Path, tmp_path: Path) -> None:
    import headscape as hs

    out = tmp_path / "cap.safetensors"
    done = call("capture", small_run, "--prompt", "line", "--generate", 5, "--out", out)
    assert done.exit_code == 0, done.output
    cap = hs.Capture.load(out)
    assert cap.sequence["prompt_tokens"] == 4
    assert 4 < cap.length <= 9
    done = call("capture", small_run, "--prompt", "line", "--chat", "--out", out)
    assert "has no chat template" in str(done.exception)
    done = call("capture", small_run, "--chat", "--out", out)
    assert "--chat needs a message" in str(done.exception)
