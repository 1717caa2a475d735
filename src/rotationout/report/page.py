"""One self-contained HTML page from a list of sections: no script, no network, light, dark and on paper."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Section", "Table", "render"]

SENTENCE = 40
"""More characters in a cell are words, which may be wrapped; numbers are shorter."""


@dataclass(frozen=True)
class Table:
    """Cells as text. The first column names the row; the others are numbers or sentences."""

    header: list[str]
    rows: list[list[str]]

    def filled(self, always: int = 0) -> Table:
        """Without the columns that are dashes all the way down; the first ones, as many as ``always``, are kept."""
        kept = [k for k in range(len(self.header)) if k < always or any(row[k] != "–" for row in self.rows)]
        return Table([self.header[k] for k in kept], [[row[k] for k in kept] for row in self.rows])

    @property
    def wordy(self) -> set[int]:
        """The columns that have sentences, by place.

        >>> Table(["noise", "%", "result"], [["none", "70", "It is ahead of nothing, as it is the only one."]]).wordy
        {2}
        """
        return {k for k in range(1, len(self.header)) if any(len(row[k]) > SENTENCE for row in self.rows)}

    def markdown(self) -> str:
        """The same for a terminal or a Markdown page.

        >>> print(Table(["noise", "%"], [["none", "70.1"]]).markdown())
        | noise | % |
        |---|---|
        | none | 70.1 |
        """
        lines = ([cell.replace("|", r"\|") for cell in cells] for cells in (self.header, *self.rows))
        text = [f"| {' | '.join(cells)} |" for cells in lines]
        return "\n".join([text[0], "|" + "---|" * len(self.header), *text[1:]])


@dataclass(frozen=True)
class Section:
    """A part of the page.

    ``figure`` is an ``<svg>`` element, ``more`` are further ones, each with its caption; ``finding`` is the one
    sentence that stands out; ``asides`` are lists that open when their summary is clicked.
    """

    title: str
    prose: list[str]
    table: Table | None = None
    figure: str = ""
    caption: str = ""
    finding: str = ""
    more: Sequence[tuple[str, str]] = ()
    asides: Mapping[str, Sequence[str]] = field(default_factory=dict)


def render(title: str, lead: str, sections: Sequence[Section], footer: str) -> str:
    """The page as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # tables on a terminal do without

    environment = Environment(
        loader=PackageLoader("rotationout.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figures = []
    for place, section in enumerate(sections):
        shown = [(section.figure, section.caption)] if section.figure else []
        numbered = enumerate([*shown, *section.more])
        figures.append([(_own_ids(svg, f"f{place}-{k}-"), caption) for k, (svg, caption) in numbered])
    template = environment.get_template("page.html.j2")
    return template.render(title=title, lead=lead, sections=list(zip(sections, figures, strict=True)), footer=footer)


def _own_ids(svg: str, prefix: str) -> str:
    """Ids must be unique on a page, and two figures by the same program use the same ones."""
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}", svg)
