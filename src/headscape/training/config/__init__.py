"""Everything a training run is a function of."""
