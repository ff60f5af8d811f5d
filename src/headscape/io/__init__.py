"""Files, child processes, and text for terminals, tables and pages: any folder may import this."""
