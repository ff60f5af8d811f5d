"""Length extrapolation: losses and answers of models, by named protocols, as one table."""
