"""Rows, the table they make, and the files it writes."""

from headscape.evaluation.table.table import Table

__all__ = ["Table"]
