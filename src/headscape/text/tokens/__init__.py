"""Token shards on disk and the batches cut from them."""
