"""What a run writes: checkpoints and provenance."""
