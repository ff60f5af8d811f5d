"""Token shards on disk, and batches of windows from them."""
