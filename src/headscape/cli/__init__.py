"""The command line: app.py is its entry point, and each command is a file beside it."""
