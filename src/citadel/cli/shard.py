"""`citadel shard INDEX --shards N`: split an index into shards."""

from __future__ import annotations

from typing import Annotated

import typer

from citadel.cli.support.options import IndexFolder, Memory, parse_size
from citadel.cli.support.output import plural


def shard(
    index: IndexFolder,
    shards: Annotated[int, typer.Option("--shards", min=1, metavar="N", help="Number of shards.")],
    output: Annotated[
        str | None,
        typer.Option(
            "--output", metavar="ROOT", help="Folder of the sharded index.  [default: INDEX-shards]"
        ),
    ] = None,
    graph: Annotated[
        bool | None,
        typer.Option("--graph/--no-graph", help="Build graphs.  [default: if the index has graphs]"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the sharded index there.")] = False,
    memory: Memory = "1GiB",
) -> None:
    """Split an index into shards by the hash of each document's id. Rankings stay the same."""
    from citadel.index.shard import shard_index
    from citadel.index.snapshot import open_snapshot
    from citadel.index.storage import as_storage
    from citadel.progress import Progress

    source, root = open_snapshot(as_storage(index)), output or f"{index.rstrip('/')}-shards"
    target = as_storage(root)
    with Progress("Sharding", "documents", len(source)) as progress:
        shard_index(
            source,
            target,
            shards,
            memory=parse_size(memory),
            overwrite=overwrite,
            graph=graph,
            progress=progress.advance,
        )
    print(f"{root}: {plural(shards, 'shard')}, {plural(len(source), 'document')}")
