"""Captured arrays: stored, reduced, profiled and measured with numpy alone, never with torch."""
