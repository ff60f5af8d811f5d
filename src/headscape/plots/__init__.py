"""Pictures of captured arrays: matplotlib only, no torch and no global drawing state."""
