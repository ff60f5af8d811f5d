"""Captures: calls of a model's attention, saved and read again.

record.py, cross.py, watching.py    make one (with torch)
capture_file.py, saved_call.py      store and open one; arrays are read without torch
pooling.py, profile.py              reduce maps to cells and to curves by distance
pack.py                             what a page or the viewer's server is given
"""
