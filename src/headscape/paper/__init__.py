"""The figures of "Context-aware Biases for Length Extrapolation" (arXiv:2503.08067), remade."""
