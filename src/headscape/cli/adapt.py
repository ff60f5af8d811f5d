"""`headscape adapt`: a trained model with a different position encoding."""

from pathlib import Path
from typing import Annotated

import typer

from headscape.cli.command import command
from headscape.errors import InputError
from headscape.io.terminal import say


@command()
def adapt(
    model: Annotated[str, typer.Argument(metavar="RUN")],
    *,
    encoding: str,
    steps: int = 50,
    out: Path,
    batch: int = 8,
    lr: float = 2e-3,
    outputs: float = 0.5,
    seed: int = 0,
    fit: bool = True,
) -> None:
    """Give a trained run a different encoding by self-distillation.

    The new model starts from the run's weights and learns from the run itself, at the trained
    length: first each layer's attention output, then the logits. The folder that it writes opens
    like any other model: `headscape evaluate`, `diagnose`, `export`.

    Examples:
        headscape adapt runs/cable --encoding fox --steps 50 --out runs/fox

    Args:
        model: A run on a text.
        encoding: The new encoding, such as fox, cable, alibi, nope or rope+fox.
        steps: Updates.
        out: Folder to write; it must be new or empty.
        batch: Windows of the trained length per step.
        lr: Largest learning rate.
        outputs: Share of the steps that learn attention outputs; the rest learn logits.
        seed: Random seed of the encoding's weights and of the windows.
        fit: Start T5's tables (t5, t5-clipped) from the kernels of the run's heads.
    """
    from headscape.io.files import empty_target
    from headscape.io.terminal import SlowBar
    from headscape.models.gpt2_model import GPT2Model
    from headscape.models.load import load
    from headscape.training.adapt import Adaptation
    from headscape.training.adapt import adapt as adapted

    empty_target(out)
    old = load(model)
    if not isinstance(old, GPT2Model) or old.dataset is None:
        raise InputError(f"{model} is not a run on a text: adapt takes the folder of one.")
    options = Adaptation(
        encoding=encoding, steps=steps, batch=batch, lr=lr, outputs=outputs, seed=seed, fit=fit
    )
    last: dict[str, float] = {}
    with SlowBar("adapting", steps) as bar:

        def progress(part: str, loss: float) -> None:
            last[part] = loss
            bar.advance(1)

        new = adapted(old.gpt2, old.dataset.train, options, progress)
    for part, loss in last.items():
        say(f"{part}: last loss {loss:.4f}", err=True)
    say(GPT2Model(new, tokenizer=old.tokenizer).save(out))
