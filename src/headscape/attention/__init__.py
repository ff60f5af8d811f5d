"""Attention with any positional bias: one dense definition and the fused paths that equal it."""
