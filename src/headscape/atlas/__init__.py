"""A page of every head of a model: thumbnails, kernel curves and measures."""
