"""Our encodings in transformers models: what `set_encoding` puts in."""
