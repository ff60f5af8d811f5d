"""What position does in every head of a model, as numbers with intervals."""
