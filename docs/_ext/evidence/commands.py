"""The commands, from their docstrings."""

from __future__ import annotations

from rotationout.cli.app import COMMANDS, help_of

from .cells import markdown

__all__ = ["texts"]


def texts() -> dict[str, str]:
    """By name."""
    rows = []
    for name, function in COMMANDS.items():
        text = help_of(function)
        example = text.partition("Example:\n")[2].splitlines()[0].strip()
        rows.append([f"`{name}`", text.partition("\n")[0], f"`{example}`"])
    return {"commands": markdown(["command", "what it does", "example"], rows)}
