"""A whole report: report.md with pictures beside it, and report.html that needs nothing beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from citadel.errors import UsageError
from citadel.paper import tables
from citadel.paper.attribution import attribution, read_passages
from citadel.paper.family import BASELINE, family_tables
from citadel.paper.measured import Measured, read_folder
from citadel.paper.parts import Picture, ReportSection, Table
from citadel.types import write_whole

FIGURES = "figures"
DPI = 160
STYLE: Any = {
    "font.size": 12, "axes.titlesize": 12, "legend.fontsize": 10, "figure.constrained_layout.use": True,
    "svg.hashsalt": "citadel", "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip


def build_report(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    baseline: str = BASELINE,
    progress: Callable[[int, int], Any] = lambda done, total: None,
) -> list[Path]:
    """Write report.md, report.html and figures/*.png and *.svg from the measurements below a folder."""
    _need_matplotlib()
    from citadel.paper.page import html_page

    found = read_folder(folder)
    parts = sections(found, baseline, folder)
    target = Path(out)
    (target / FIGURES).mkdir(parents=True, exist_ok=True)
    pictures = [part for section in parts for part in section.parts if isinstance(part, Picture) and part.draw]
    for place, picture in enumerate(pictures):
        draw(picture, target / FIGURES)
        progress(place + 1, len(pictures))
    head = _head(found)
    write_whole(str(target / "report.md"), [markdown(head, parts)])
    write_whole(str(target / "report.html"), [html_page(head, parts, target / FIGURES)])
    return [target / "report.md", target / "report.html"]


def sections(found: Sequence[Measured], baseline: str, folder: str | os.PathLike[str]) -> list[ReportSection]:
    """Everything that a report holds, in the paper's order."""
    from citadel.paper import figures, stages

    work: list[Table | Picture] = [tables.table_3(found), tables.balance_table(found)]
    work += [*figures.figure_3(found), tables.stage_table(found), *stages.figure_8(found)]
    pruning: list[Table | Picture] = [*figures.figure_4(found), tables.table_4(found), *figures.figure_6(found)]
    return [
        ReportSection("Every system side by side", family_tables(found, baseline)),
        ReportSection(
            "Quality, size and latency", [tables.table_1(found), *figures.figure_1(found), tables.table_2(found)]
        ),
        ReportSection("Work", work),
        ReportSection("Pruning and quantisation", pruning),
        ReportSection("Ablations", [tables.table_5(found), tables.table_6(found)]),
        ReportSection("Routing", attribution(read_passages(folder))),
    ]


def _head(found: Sequence[Measured]) -> list[str]:
    """Where and when, in two sentences."""
    known = [each.record.machine for each in found if each.record.machine]
    machines = sorted({f"{one.get('cpu')}, {one.get('cores')} cores" for one in known}) or ["a machine not named"]
    dates = sorted({str(one.get("date")) for one in known}) or ["at a time not named"]
    named = ", ".join(sorted({each.record.collection for each in found}))
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return [
        f"{len(found)} measurements on {named}, made {when} on {'; '.join(machines)}.",
        "A dash is a figure that was not measured. Numbers in brackets and in columns called paper are the paper's.",
    ]


def markdown(head: Sequence[str], parts: Sequence[ReportSection]) -> str:
    """The report as Markdown; its pictures stand in figures/."""
    texts = ["# Report", *head]
    for section in parts:
        texts.append(f"## {section.title}")
        texts += [part.markdown() if isinstance(part, Table) else part.markdown(FIGURES) for part in section.parts]
    return "\n\n".join(texts) + "\n"


def draw(picture: Picture, folder: Path) -> None:
    """Write one picture as PNG and SVG, the same bytes each time."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    assert picture.draw is not None
    with matplotlib.rc_context(STYLE):
        canvas = Figure(figsize=picture.size, dpi=DPI)
        FigureCanvasAgg(canvas)
        picture.draw(canvas)
        canvas.savefig(folder / f"{picture.name}.png", metadata={"Software": None})
        canvas.savefig(folder / f"{picture.name}.svg", metadata={"Date": None, "Creator": None})


def _need_matplotlib() -> None:
    try:
        import matplotlib as _  # noqa: F401
    except ImportError:
        raise UsageError(
            "figures need matplotlib: run `pip install 'citadel-ir[report]'`, or leave --out out"
        ) from None
