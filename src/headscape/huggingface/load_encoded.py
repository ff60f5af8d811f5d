"""Load a model that was saved with one of our encodings.

`save_pretrained` writes the encoding's tensors among the others and what `set_encoding` was given
into config.json. A model of transformers' own class has no place for them until `set_encoding` has
run, so `load` runs it between building the model and filling in the weights.
"""

from pathlib import Path
from typing import Any

from headscape.errors import InputError
from headscape.huggingface.attention_function import register
from headscape.huggingface.own_encoding import ENCODING
from headscape.huggingface.replace_position import set_encoding
from headscape.models.transformers.model_folder import checked_folder, explained


def load(folder: Path | str, **options: Any) -> Any:
    """Return the model in a folder, as the class it was saved from.

    `options` go to from_pretrained. As with `headscape.load`, only safetensors files inside the
    folder are opened and no code of the folder is run.
    """
    import transformers

    register()
    with checked_folder(Path(folder)) as files:
        return _load(transformers, Path(folder), files.view, options)


def _load(transformers: Any, folder: Path, view: Path, options: dict[str, Any]) -> Any:
    """Return the model whose checked files are linked from `view`."""
    given = {"local_files_only": True, "trust_remote_code": False}
    with explained(folder, "is not a model that transformers loads", view):
        config = transformers.AutoConfig.from_pretrained(view, **given)
    records = getattr(config, ENCODING, None)
    if not records:
        raise InputError(
            f"{folder} was not saved by a model with one of our encodings: load it with "
            f"from_pretrained."
        )
    kind: Any = getattr(transformers, config.architectures[0])

    def build(self: Any, config: Any, *args: Any, **more: Any) -> None:
        kind.__init__(self, config, *args, **more)
        for record in records:
            fields = {key: value for key, value in record.items() if key != "fields"}
            set_encoding(self, **fields, **record["fields"])

    encoded: Any = type(kind.__name__, (kind,), {"__init__": build, "__module__": kind.__module__})
    with explained(folder, "is not a model that transformers loads", view, runs_ours=True):
        model = encoded.from_pretrained(view, config=config, **{**given, **options})
    model.__class__, model.name_or_path = kind, str(folder)
    return model
