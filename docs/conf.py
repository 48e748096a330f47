"""How the documentation is built: `make docs`, from the repository's root, into build/site.

The source directory is the repository itself, so that a link means the same on the site and in a
checkout. Nothing on the site is loaded from elsewhere: fonts are the system's, the search is a
file of its own, and notebooks are shown with the outputs they were saved with.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).parent / "_ext")]

import hermes_nb  # noqa: E402 - found through the path above

project = "hermes_nb"
author = "the hermes_nb contributors"
copyright = "2026, the hermes_nb contributors"  # noqa: A001 - Sphinx's name
version = release = hermes_nb.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "hermes_docs",
]
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "notebooks/*.ipynb",
    "notebooks/data/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
]
exclude_patterns = [".*", "build", "dist", "artifacts", "docs/_*", "docs/conf.py"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # annotations name types that have no page of their own
default_role = "code"  # a docstring's single backticks, which are Markdown's

myst_enable_extensions = ["deflist", "colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "off"
nb_ipywidgets_js = {}  # loaded from elsewhere, and no saved output needs it
nb_merge_streams = True
nb_render_markdown_format = "gfm"  # as front ends and GitHub read an answer
suppress_warnings = [
    "mystnb.unknown_mime_type",
    "myst.header",  # a saved output may begin with any heading
]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": False}

html_theme = "furo"
pygments_dark_style = "github-dark"  # the default underlines modules and shows magics in red
html_title = f"hermes_nb {release}"
html_static_path = ["_static"]
html_css_files = ["hermes.css"]
html_extra_path = ["_static/root"]
html_search_scorer = str(Path(__file__).parent / "_static" / "scorer.js")
html_show_sourcelink = False
html_copy_source = False
