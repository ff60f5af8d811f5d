"""`headscape diagnose`: why a model breaks past its context, and what mends it."""

from pathlib import Path

import typer

from headscape.cli.command import command
from headscape.cli.opening import model_options, open_models
from headscape.cli.parsing import chosen_text
from headscape.io.terminal import say


@command(fields=model_options)
def diagnose(
    context: typer.Context,
    model: str,
    *,
    length: int,
    prompt: str | None = None,
    text: list[str] | None = None,
    corpus: str | None = None,
    trained: int | None = None,
    windows: int | None = None,
    questions: int | None = None,
    effects: int | None = None,
    remedies: list[str] | None = None,
    first: int | None = None,
    quick: bool = False,
    apply: Path | None = None,
    out: Path = Path("diagnosis"),
) -> None:
    """Say why a model breaks past its context, and what mends it.

    Compares the config with what the model computes, finds the last length that holds, measures
    every head there with a control, tries remedies that need no training on the same windows, and
    ranks them. Writes diagnosis.html, diagnosis.md, diagnosis.json, remedies.csv and heads.csv.
    What is finished is kept in OUT/stages: the same command goes on after an interruption.

    Examples:
        headscape diagnose runs/cable --length 4096
        headscape diagnose hf:smollm2 --length 12288 --text text.txt --quick

    Args:
        context: The command line as it was parsed.
        model: A run, a folder of weights, hf:FOLDER, or hf:OWNER/NAME on the Hugging Face Hub.
        length: Tokens that the model is to read, more than it was trained on.
        prompt: Read this text.
        text: Read a text file; - reads standard input. May be repeated: windows are taken from all.
        corpus: Read the validation side of a corpus: stdlib, a file or a folder. [default: the text
            that a run was trained with]
        trained: The trained length. [default: what the config says]
        windows: Windows of the length; intervals are over them, from 6 on. [default: 8, or as many
            as the text has]
        questions: Questions per kind, depth and length; 0 asks none. [default: 2]
        effects: Windows on which single heads get known positions; 0 skips this. [default: 6]
        remedies: Try these only: linear, ntk, dynamic, yarn, longrope, prope, log, nope, sinks,
            clip, group, chunk, stretch, clip-bias. [default: those that apply]
        first: Number of the token that every window begins with. [default: the text as it is cut]
        quick: Run little: 1 window, remedies of RoPE at far positions in short windows, and no
            effects of single heads. The page says what was left out.
        apply: Write a copy of a published model's config.json to this folder, with the best remedy
            that is a setting of transformers.
        out: Folder to write to.
    """
    import headscape as hs
    from headscape.diagnosis.report import check_folder

    check_folder(out, reads=[*(text or []), *([] if corpus is None else [corpus])])
    files: list[str | None] = [None] if text is None else [*text]
    texts = [chosen_text(prompt, each) for each in files]
    [opened] = open_models(context, [model])
    found = hs.diagnose(
        opened,
        length,
        texts[0] if len(texts) == 1 else [each for each in texts if each is not None],
        corpus=corpus,
        trained=trained,
        windows=windows,
        questions=questions,
        effects=effects,
        remedies=remedies,
        first=first,
        quick=quick,
        out=out,
        apply=apply,
    )
    say(found.sentence)
    for each in found.data["findings"]:
        say(f"{each['kind']}: {each['text']}")
    if found.setting_sentence is not None:
        say(found.setting_sentence)
    say(out / "diagnosis.html")
    if apply is not None:
        setting = found.data["advice"]["setting"]
        say(
            "No config was written: the model holds, or no setting of transformers helps."
            if setting is None
            else f"{setting['remedy']}: {apply / 'config.json'}"
        )
