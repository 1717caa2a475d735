"""How the documentation is built, by ``make docs``.

Pages are Markdown, the API is made from docstrings, numbers come from records.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent), str(HERE.parent / "src")]

import evidence  # noqa: E402

import rotationout  # noqa: E402

project = "RotationOut"
author = "The rotationout developers"
release = version = rotationout.__version__
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "mathml",
    "public_names",
]
exclude_patterns = ["_ext"]

myst_enable_extensions = ["attrs_inline", "deflist", "dollarmath", "substitution"]
myst_heading_anchors = 3
myst_substitutions = evidence.substitutions()
suppress_warnings = ["config.cache"]  # substitutions are made anew for every build

default_role = "py:obj"  # `name` in a docstring is a name
autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "RotationOut"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
html_math_renderer = "mathml"  # no script and no network
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
