"""What position is in every layer of a model, read from its config alone."""
