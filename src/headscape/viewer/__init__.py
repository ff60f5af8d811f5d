"""The viewer's hosts: one file, a loopback server and a notebook widget show the same module.

view.py     what is shown, captured if need be; page.py, serve.py, widget.py  the three hosts
tiles.py    exact tiles of a long capture, for the server and the widget
static/     the module, built from web/
"""
