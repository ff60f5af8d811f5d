"""The stand-in module, for every test of a host."""

from viewer.packs import module

__all__ = ["module"]
