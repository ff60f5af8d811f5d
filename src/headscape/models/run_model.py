"""A training run as a `Model`."""

from pathlib import Path

from headscape.models.gpt2_model import GPT2Model
from headscape.training.objective import objective_of
from headscape.training.run import Run


def open_run(folder: Path | str, step: int | None = None) -> GPT2Model:
    """The newest good checkpoint of a run, or the one of a step."""
    run = Run.open(folder, step)
    return GPT2Model(
        run.model,
        tokenizer=run.tokenizer,
        dataset=run.dataset,
        folder=run.folder,
        preset=run.config.preset,
        task=objective_of(run.config.corpus).task,
        seed=run.config.seed,
        recipe=run.recipe,
        provenance={
            "run": run.folder.name,
            "step": run.step,
            "checkpoint_hash": run.checkpoint_hash,
        },
    )
