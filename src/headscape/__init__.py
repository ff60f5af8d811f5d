"""Headscape: what position does in every attention head of a transformer."""

from importlib.metadata import version

__version__ = version("headscape")
