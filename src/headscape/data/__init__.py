"""Text to batches of tokens, in numpy: corpus -> tokenizer -> shards -> batches."""
