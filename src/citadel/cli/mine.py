"""`citadel mine`: mine hard negatives with BM25 or a model."""

from __future__ import annotations

from typing import Annotated

import typer

from citadel.cli.support.options import Threads
from citadel.cli.support.run_training import run_mine


def mine(
    model: Annotated[
        str,
        typer.Option(
            metavar="bm25|DIR|dense:DIR", help="The ranker: BM25, a trained model, or a sentence encoder."
        ),
    ],
    out: Annotated[str, typer.Option(metavar="FILE", help="The JSONL file to write.")],
    data: Annotated[str, typer.Option(metavar="CONFIG", help="A training config: its [data] is mined.")] = "",
    passages: Annotated[str, typer.Option(metavar="FILE", help="Instead of --data: the collection.")] = "",
    pairs: Annotated[str, typer.Option(metavar="FILE", help="Instead of --data: the pairs.")] = "",
    k: Annotated[int, typer.Option("-k", min=1, help="Negatives per query.")] = 100,
    margin: Annotated[
        float | None, typer.Option(help="Drop passages that score above the positive minus this.")
    ] = None,
    device: Annotated[str, typer.Option(metavar="auto|cuda|cpu", help="Device of a torch model.")] = "auto",
    threads: Threads = None,
) -> None:
    """Find for each pair the best-ranked passages that are not known to answer its query."""
    run_mine(model, out, data, passages, pairs, k, margin, device, threads)
