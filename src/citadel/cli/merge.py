"""`citadel merge INDEX`: merge all segments into one and drop deleted documents."""

from __future__ import annotations

from typing import Annotated

import typer

from citadel.cli.support.options import IndexFolder, Memory, parse_size
from citadel.cli.support.output import plural, say


def merge(
    index: IndexFolder,
    retrain: Annotated[
        bool, typer.Option("--retrain", help="pq2, pq1, router centroid: train a new codebook first.")
    ] = False,
    graph: Annotated[
        bool | None,
        typer.Option("--graph/--no-graph", help="Build graphs from now on.  [default: as before]"),
    ] = None,
    memory: Memory = "1GiB",
) -> None:
    """Merge all segments into one and drop deleted documents. Rankings stay the same."""
    from citadel.api import Index
    from citadel.progress import Progress

    with Index.open(index, memory=parse_size(memory)) as opened:
        if needed := opened.merge_space(retrain=retrain):
            say(f"{index}: merging needs up to {needed / 1e6:,.1f} MB of free disk space while it runs")
        with Progress("Merging"):
            opened.merge(retrain=retrain, graph=graph)
        print(f"{index}: merged, {plural(len(opened), 'document')}")
