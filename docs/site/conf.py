"""Sphinx's settings. Nothing is fetched from the network, neither by the build nor by a reader."""

from importlib.metadata import version as installed
from pathlib import Path

project = "Headscape"
author = "The Headscape authors"
project_copyright = author
version = release = installed("headscape")

extensions = ["myst_parser"]
myst_heading_anchors = 4
nitpicky = True
suppress_warnings = ["myst.header"]  # a README may start with any level of heading

highlight_language = "text"

html_theme = "furo"
html_title = f"Headscape {release}"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_search_scorer = str(Path(__file__).with_name("search_scorer.js"))
pygments_style = "friendly"
pygments_dark_style = "monokai"
