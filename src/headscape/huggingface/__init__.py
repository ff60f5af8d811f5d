"""Our attention and our encodings in transformers models, and our models as theirs.

    import headscape.huggingface as hf

    hf.register()                        makes attn_implementation="headscape" known
    hf.set_attention(model)              the same for one model, or a reason why not
    hf.set_encoding(model, "cable")      replaces a model's position encoding
    hf.load("folder")                    a model saved with one of our encodings

Importing this package registers the classes of exported models, so that
`AutoModelForCausalLM.from_pretrained` opens every folder that `headscape.export` wrote.
"""

from headscape.errors import InputError

try:
    import transformers  # noqa: F401
except ImportError as error:
    raise InputError(
        "headscape.huggingface and export need transformers: pip install "
        "'headscape[transformers]', or pip install '.[transformers]' in a clone."
    ) from error

from headscape.huggingface.attend.attention_function import register, set_attention
from headscape.huggingface.export.exported_model import register_exported
from headscape.huggingface.inject.set_encoding import load, set_encoding

__all__ = ["load", "register", "set_attention", "set_encoding"]

register_exported()
