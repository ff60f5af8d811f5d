"""Reading and writing files, checking types, showing progress: every folder may import this."""
