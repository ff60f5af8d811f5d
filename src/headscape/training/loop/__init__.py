"""The training loop: steps, optimizer, metrics, progress."""
