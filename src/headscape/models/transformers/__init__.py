"""Published models of other architectures, through the optional package transformers."""
