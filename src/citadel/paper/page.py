"""The report as one self-contained HTML page: no script, pictures inlined."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from citadel.paper.parts import Picture, ReportSection, Table

_STYLE = """
:root { --back: #fff; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem; }
body { color: #1a1a1a; background: var(--back); }
h1, h2, h3 { line-height: 1.2; }
h2 { border-bottom: 1px solid #ccc; padding-bottom: .2rem; margin-top: 2.5rem; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid #888; vertical-align: bottom; }
th { white-space: normal; max-width: 8rem; line-height: 1.3; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--back); }
img { max-width: 100%; height: auto; }
.note { color: #555; font-size: .88rem; max-width: 60rem; }
nav a { margin-right: 1rem; }
@media (prefers-color-scheme: dark) {
  :root { --back: #16181c; }
  body { color: #e6e6e6; } th, td { border-color: #3a3d44; } .note { color: #a8adb5; }
  img { background: #fff; padding: .3rem; } a { color: #6db3f2; }
}
"""


def html_page(head: Sequence[str], parts: Sequence[ReportSection], figures: Path) -> str:
    """Render a report; `figures` is the folder of its pictures."""
    links = "".join(f'<a href="#s{index}">{escape(section.title)}</a>' for index, section in enumerate(parts))
    body = "".join(_section(index, section, figures) for index, section in enumerate(parts))
    intro = "".join(f"<p>{escape(line)}</p>" for line in head)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>citadel: report</title><style>{_STYLE}</style></head>"
        f"<body><h1>Report</h1>{intro}<nav>{links}</nav>{body}</body></html>\n"
    )


def _section(index: int, section: ReportSection, figures: Path) -> str:
    inner = "".join(
        _table(part) if isinstance(part, Table) else _picture(part, figures) for part in section.parts
    )
    return f'<section id="s{index}"><h2>{escape(section.title)}</h2>{inner}</section>'


def _table(part: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in part.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in part.rows
    )
    shown = f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    body = shown if part.rows else "<p>Not measured yet.</p>"
    return f"<h3>{escape(part.title)}</h3>{body}{_notes(part.notes)}"


def _picture(part: Picture, figures: Path) -> str:
    if part.draw is None:
        return f"<h3>{escape(part.title)}</h3><p>Not measured yet.</p>{_notes(part.notes)}"
    data = base64.b64encode((figures / f"{part.name}.svg").read_bytes()).decode()
    image = f'<img alt="{escape(part.title)}" src="data:image/svg+xml;base64,{data}">'
    return f"<h3>{escape(part.title)}</h3>{image}{_notes(part.notes)}"


def _notes(notes: Sequence[str]) -> str:
    return "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
