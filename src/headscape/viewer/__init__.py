"""The viewer's hosts: one file, a loopback server and a notebook widget show the same module."""
