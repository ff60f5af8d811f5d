"""Headscape: what position does in every attention head of a transformer."""
