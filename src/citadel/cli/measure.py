"""`citadel measure MODEL`: measure a system on a collection, as JSON for `citadel report`."""

from __future__ import annotations

from typing import Annotated

import typer

from citadel.cli.support.options import Threads
from citadel.cli.support.run_training import run_measure


def measure(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]", help="A model folder, a checkpoint, default or bm25; not with --fill."
        ),
    ] = None,
    collection: Annotated[
        str, typer.Option(metavar="DIR|ID", help="A BEIR or MS MARCO folder, or ir_datasets:ID.")
    ] = "",
    out: Annotated[
        str, typer.Option(metavar="FILE.json", help="Output file; the run is written beside it.")
    ] = "",
    name: Annotated[str, typer.Option(metavar="NAME", help="The system's name in tables.")] = "",
    tau: Annotated[list[float] | None, typer.Option(help="Prune document keys at τ; repeatable.")] = None,
    codec: Annotated[
        list[str] | None, typer.Option(help="fp16, int8, pq2, pq1 or residual2 (ColBERT); repeatable.")
    ] = None,
    semantic: Annotated[
        list[str] | None, typer.Option(help="auto, exact, graph, rerank or off; repeatable.")
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Hits per query, at most 1000.")] = 100,
    engine: Annotated[
        str, typer.Option(metavar="auto|native|torch", help="torch: exact, without the engine.")
    ] = "auto",
    device: Annotated[str, typer.Option(help="For a checkpoint: auto, cuda or cpu.")] = "auto",
    fill: Annotated[
        str, typer.Option(metavar="FILE.json", help="Compute the measures of this file from its run.")
    ] = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing measurements.")] = False,
    threads: Threads = None,
    split: Annotated[
        str, typer.Option(metavar="NAME", help="test, dev; MS MARCO: dev-small, dl19, dl20.")
    ] = "",
    timed: Annotated[
        int, typer.Option("--latency", min=0, metavar="N", help="Also time the first N queries.")
    ] = 0,
) -> None:
    """Index a collection with a model, search it, and record quality, cost and size.

    With several τ, codecs or semantic modes, the documents are encoded once; each value gets its own file."""
    run_measure(
        model or "",
        collection,
        out,
        name,
        tau,
        codec,
        semantic,
        k,
        engine,
        device,
        fill,
        overwrite,
        threads,
        split,
        timed,
    )
