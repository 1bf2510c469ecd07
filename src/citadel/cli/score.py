"""`citadel score`: score mined negatives with a teacher."""

from __future__ import annotations

from typing import Annotated

import typer

from citadel.cli.support.run_training import run_score


def score(
    teacher: Annotated[str, typer.Option(metavar="DIR", help="The teacher: a folder or a model of the hub.")],
    negatives: Annotated[str, typer.Option(metavar="FILE", help="JSONL written by `citadel mine`.")],
    out: Annotated[str, typer.Option(metavar="FILE", help="The JSONL file to write.")],
    data: Annotated[
        str, typer.Option(metavar="CONFIG", help="A training config, for the passages' texts.")
    ] = "",
    passages: Annotated[str, typer.Option(metavar="FILE", help="Instead of --data: the collection.")] = "",
    kind: Annotated[
        str, typer.Option(metavar="cross|dense", help="A cross-encoder, or a sentence encoder.")
    ] = "cross",
    keep: Annotated[int, typer.Option(min=2, help="Passages per query, including the positive.")] = 32,
    device: Annotated[str, typer.Option(metavar="auto|cuda|cpu", help="Device of the teacher.")] = "auto",
    fuse: Annotated[
        str,
        typer.Option(
            metavar="bm25=WEIGHT", help="Add BM25 with this weight, as a z-score over each query's passages."
        ),
    ] = "",
) -> None:
    """Score each query's positive and hard negatives with a teacher."""
    run_score(teacher, negatives, out, data, passages, kind, keep, device, fuse)
