"""Our models as transformers models: what `headscape.export` writes and transformers loads."""
