"""The stand-in module, for every test of a host."""

from page.packs import module

__all__ = ["module"]
