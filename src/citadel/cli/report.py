"""`citadel report FOLDER`: tables from measured files."""

from __future__ import annotations

from typing import Annotated

import typer


def report(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Where the files of `citadel measure` are.")],
    baseline: Annotated[str, typer.Option(metavar="NAME", help="The system others are tested against.")] = "CITADEL",
) -> None:
    """Print every system side by side on each collection, with paired t-tests against one of them."""
    from citadel.report.family import family_table
    from citadel.report.measured import read_folder

    print(family_table(read_folder(folder), baseline))
