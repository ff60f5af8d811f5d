"""The training loop: steps, optimiser, metrics, progress."""
