"""Tests of cards."""
