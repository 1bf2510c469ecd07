"""Parts of a report: tables and figures with their notes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from citadel.paper.markdown import table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


@dataclass(frozen=True)
class Table:
    """One table; cells are strings.

    >>> print(Table("Table 3", ["system", "products"], [["CITADEL", "638"]]).markdown())
    ### Table 3
    <BLANKLINE>
    | system | products |
    | --- | ---: |
    | CITADEL | 638 |
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        body = table(self.columns, self.rows) if self.rows else "Not measured yet."
        return "\n\n".join([f"### {self.title}", body, *self.notes])


@dataclass(frozen=True)
class Picture:
    """One figure; `draw` fills a canvas, and is None if there is nothing to show."""

    name: str
    title: str
    draw: Callable[[Canvas], None] | None
    notes: Sequence[str] = ()
    size: tuple[float, float] = (6.4, 4.2)  # inches

    def markdown(self, folder: str) -> str:
        shown = f"![{self.title}]({folder}/{self.name}.png)" if self.draw else "Not measured yet."
        return "\n\n".join([f"### {self.title}", shown, *self.notes])


@dataclass(frozen=True)
class ReportSection:
    """A heading with its tables and figures."""

    title: str
    parts: Sequence[Table | Picture] = field(default_factory=list)
