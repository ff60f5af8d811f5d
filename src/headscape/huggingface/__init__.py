"""Our models inside transformers; importing this package registers their classes.

`AutoModelForCausalLM.from_pretrained` then opens every folder that `headscape.export` wrote.
"""

from headscape.huggingface.exported_auto import register_exported

register_exported()
