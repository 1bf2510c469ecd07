"""`citadel report FOLDER`: the paper's tables and figures from measurements."""

from __future__ import annotations

from typing import Annotated

import typer


def report(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="The folder with files of `citadel measure`.")
    ],
    out: Annotated[
        str, typer.Option(metavar="DIR", help="Write report.md, report.html and figures there.")
    ] = "",
    baseline: Annotated[
        str, typer.Option(metavar="NAME", help="The system others are tested against.")
    ] = "CITADEL",
) -> None:
    """Write Tables 1 to 6 and Figures 1 and 3 to 8 of the paper, with its numbers beside yours.

    Without --out: print a table of all systems on each collection, with paired t-tests."""
    from citadel.paper.build import build_report
    from citadel.paper.family import family_table
    from citadel.paper.measured import read_folder
    from citadel.progress import Progress

    if not out:
        print(family_table(read_folder(folder), baseline))
        return
    with Progress("Drawing", "figures") as progress:

        def drawn(done: int, total: int) -> None:
            progress.total = total
            progress(done)

        for file in build_report(folder, out, baseline, drawn):
            print(file)
