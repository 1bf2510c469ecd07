"""Build a report: report.md with its pictures, and a self-contained report.html."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from citadel.errors import UsageError
from citadel.files import write_whole
from citadel.paper import tables
from citadel.paper.attribution import attribution, read_passages
from citadel.paper.family import BASELINE, family_tables
from citadel.paper.measured import Measured, read_folder
from citadel.paper.parts import Picture, ReportSection, Table

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

    measurements = read_folder(folder)
    parts = sections(measurements, baseline, folder)
    target = Path(out)
    (target / FIGURES).mkdir(parents=True, exist_ok=True)
    pictures = [
        part for section in parts for part in section.parts if isinstance(part, Picture) and part.draw
    ]
    for done, picture in enumerate(pictures, 1):
        draw(picture, target / FIGURES)
        progress(done, len(pictures))
    head = _head(measurements)
    write_whole(str(target / "report.md"), [markdown(head, parts)])
    write_whole(str(target / "report.html"), [html_page(head, parts, target / FIGURES)])
    return [target / "report.md", target / "report.html"]


def sections(
    measurements: Sequence[Measured], baseline: str, folder: str | os.PathLike[str]
) -> list[ReportSection]:
    """Build the sections of a report, in the paper's order."""
    from citadel.paper import figures, stages

    work: list[Table | Picture] = [tables.table_3(measurements), tables.balance_table(measurements)]
    work += [
        *figures.figure_3(measurements),
        tables.stage_table(measurements),
        *stages.figure_8(measurements),
    ]
    pruning: list[Table | Picture] = [
        *figures.figure_4(measurements),
        tables.table_4(measurements),
        *figures.figure_6(measurements),
    ]
    return [
        ReportSection("Every system side by side", family_tables(measurements, baseline)),
        ReportSection(
            "Quality, size and latency",
            [tables.table_1(measurements), *figures.figure_1(measurements), tables.table_2(measurements)],
        ),
        ReportSection("Work", work),
        ReportSection("Pruning and quantisation", pruning),
        ReportSection("Ablations", [tables.table_5(measurements), tables.table_6(measurements)]),
        ReportSection("Routing", attribution(read_passages(folder))),
    ]


def _head(measurements: Sequence[Measured]) -> list[str]:
    """Introductory sentences: machine, date and how to read the tables."""
    known = [each.record.machine for each in measurements if each.record.machine]
    machines = sorted({f"{one.get('cpu')}, {one.get('cores')} cores" for one in known}) or [
        "an unnamed machine"
    ]
    dates = sorted({str(one.get("date")) for one in known}) or ["on an unknown date"]
    named = ", ".join(sorted({each.record.collection for each in measurements}))
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return [
        f"{len(measurements)} measurements on {named}, made {when} on {'; '.join(machines)}.",
        "A dash marks a value that was not measured. Brackets and paper columns hold the paper's values.",
    ]


def markdown(head: Sequence[str], parts: Sequence[ReportSection]) -> str:
    """Render the report as Markdown; its pictures are in figures/."""
    texts = ["# Report", *head]
    for section in parts:
        texts.append(f"## {section.title}")
        texts += [
            part.markdown() if isinstance(part, Table) else part.markdown(FIGURES) for part in section.parts
        ]
    return "\n\n".join(texts) + "\n"


def draw(picture: Picture, folder: Path) -> None:
    """Write one picture as PNG and SVG, byte for byte reproducible."""
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
            "figures need matplotlib: run `pip install 'citadel-ir[report]'`, or omit --out"
        ) from None
