"""Several processes: setup, DDP and FSDP2."""
