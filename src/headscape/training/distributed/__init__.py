"""Training with several processes: setup, DDP and FSDP2."""
