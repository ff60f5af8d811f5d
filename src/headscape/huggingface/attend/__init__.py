"""Our attention in transformers models: what attn_implementation="headscape" computes."""
