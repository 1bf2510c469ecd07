"""`citadel optimize INDEX`: build the graphs that large segments lack."""

from __future__ import annotations

from typing import Annotated

import typer

from citadel.cli.support.options import IndexFolder, Memory, parse_size
from citadel.cli.support.output import plural
from citadel.settings import GRAPH_FLOOR


def optimize(
    index: IndexFolder,
    min_documents: Annotated[
        int, typer.Option(min=1, help="Leave out smaller segments: scanning them is as fast.")
    ] = GRAPH_FLOOR,
    memory: Memory = "1GiB",
) -> None:
    """Build the graphs that large segments lack. Interrupted? Rerun the same command to resume."""
    from citadel.api import Index
    from citadel.cli.support.graphs import build_graphs

    with Index.open(index, memory=parse_size(memory)) as opened:
        built = build_graphs(opened, min_documents)
        print(f"{index}: {plural(built, 'graph')} built, {plural(len(opened), 'document')}")
