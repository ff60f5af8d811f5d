"""Attention with any positional bias: the dense definition, and fused paths tested against it."""
