"""The API reference: every name in ``__all__`` of a module, and what a name in backticks refers to.

Docstrings here are plain text with `names` in single and ``code`` in double backticks, tables and lists; so characters
that reStructuredText takes for more (|x|, n_) are escaped before it reads them.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

__all__ = ["PublicNames", "setup"]

STOP = "Module, Noise, CentredNoise, _BatchNorm, list, tuple"
"""Classes whose members are not repeated by those made from them."""
OTHERS = re.compile(r"(collections|inspect|matplotlib|nn|np|numpy|scipy|sklearn|torch)\.|(Figure|Self|Tensor|_\w+)$")
"""Names of other packages, whose documentation is elsewhere: there is no network to look them up. And private ones,
which may be there for type checkers alone."""
COLON = "\ue000"
"""Stands for a colon that is no end of a type."""


class PublicNames(SphinxDirective):
    """``{public-names} rotationout.nn``: a table of the public names of a module, then the documentation of each.

    A name that an earlier module of the reference has too, the same object, is listed there alone. Data are documented
    in the page, as only a sentence can say what they are.
    """

    required_arguments = 1
    option_spec = {"elsewhere": lambda text: text.split()}  # noqa: RUF012 (docutils reads it from the class)

    def run(self) -> list[nodes.Node]:
        """The table and the entries, parsed as if they had been written."""
        module = importlib.import_module(self.arguments[0])
        earlier = [importlib.import_module(name) for name in self.options.get("elsewhere", [])]
        known = {id(getattr(other, name)): f"{other.__name__}.{name}" for other in earlier for name in other.__all__}
        own = [n for n in module.__all__ if not inspect.ismodule(value := getattr(module, n)) and callable(value)]
        repeated = [known[id(getattr(module, name))] for name in own if id(getattr(module, name)) in known]
        own = [name for name in own if id(getattr(module, name)) not in known]
        lines = [f".. automodule:: {module.__name__}", ""]
        if repeated:
            lines += [
                "Here too: " + ", ".join(f"`{name}`" for name in repeated) + ".",
                "",
            ]
        lines += [
            ".. autosummary::",
            "   :nosignatures:",
            "",
            *(f"   {name}" for name in own),
            "",
        ]
        for name in own:
            if inspect.isclass(getattr(module, name)):
                lines += [
                    f".. autoclass:: {name}",
                    "   :members:",
                    f"   :inherited-members: {STOP}",
                    "",
                ]
            else:
                lines += [f".. autofunction:: {name}", ""]
        return self.parse_text_to_nodes("\n".join(_rst(lines)), allow_section_headings=True)


def _rst(lines: list[str]) -> list[str]:
    """The lines as a block that a Markdown page hands to reStructuredText."""
    return ["```{eval-rst}", *lines, "```"]


def escape(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """Make plain text of what is not in backticks, in place."""
    if what == "property":  # else "co(x): what it is" would be read as a type and a text
        lines[0] = lines[0].replace(":", COLON)
    lines[:] = [line if re.match(r"\s*(>>>|\.\.\. |=====)", line) else _escape_line(line) for line in lines]


def restore(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """Put colons back, once sections are read."""
    lines[:] = [line.replace(COLON, ":") for line in lines]


def _escape_line(line: str) -> str:
    parts = re.split(r"(``.+?``|`[^`]+`)", line)
    plain = [re.sub(r"\||(?<=\w)_(?=\W|$)", r"\\\g<0>", part) for part in parts[::2]]
    parts[::2] = plain
    return "".join(parts)


def skip(app: Sphinx, what: str, name: str, obj: object, skipped: bool, options: Any) -> bool | None:
    """Leave out members of other packages, fields of named tuples, which their docstrings explain, and extra_repr."""
    home = getattr(getattr(obj, "fget", obj), "__module__", None) or "rotationout"
    foreign = inspect.isroutine(obj) and not home.startswith("rotationout")
    return True if foreign or name == "extra_repr" or type(obj).__name__ == "_tuplegetter" else None


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Node) -> nodes.Node | None:
    """Where a short name leads: to the public object of that name; to nowhere if it is not public, or another's."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"].removesuffix("()")
    objects = env.domains.python_domain.objects
    found = [name for name in objects if name == target or name.endswith(f".{target}")]
    if found:
        name = min(found, key=len)
        entry = objects[name]
        return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, content, name)
    if OTHERS.match(target) or _exists(target) or _exists(f"{node.get('py:class')}.{target}"):
        return content
    return None


@functools.cache
def _exists(target: str) -> bool:
    """Whether a name is one of the package, if not a public one."""
    for key, module in list(sys.modules.items()):
        if key.partition(".")[0] == "rotationout" and _within(module, target.removeprefix(f"{key}.").split(".")):
            return True
    return False


def _within(value: object, path: list[str]) -> bool:
    for name in path:
        if name in getattr(value, "__annotations__", {}):  # a field
            return True
        if not hasattr(value, name):
            return False
        value = getattr(value, name)
    return True


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive and the rest."""
    app.add_directive("public-names", PublicNames)
    app.connect("autodoc-process-docstring", escape, priority=100)  # before sections are read
    app.connect("autodoc-process-docstring", restore, priority=900)
    app.connect("autodoc-skip-member", skip)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
