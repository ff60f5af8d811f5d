"""Files, types and progress: what every folder may use."""
