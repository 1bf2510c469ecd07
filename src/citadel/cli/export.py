"""`citadel export CHECKPOINT --out DIR`: write a trained model as a folder that needs no torch."""

from __future__ import annotations

from typing import Annotated

import typer


def export(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="A folder written by `citadel train`.")
    ],
    out: Annotated[str, typer.Option(metavar="DIR", help="The model folder to write.")],
    precision: Annotated[
        str, typer.Option(metavar="int8|fp32|both", help="How the weights are stored.")
    ] = "int8",
    format_: Annotated[
        str, typer.Option("--format", metavar="onnx|sentence-transformers", help="What to write.")
    ] = "onnx",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing folder.")] = False,
) -> None:
    """Write a model folder: ONNX graph, tokenizer, config and model card. The result is verified first.

    With --format sentence-transformers, write a ColBERT, SPLADE or DPR model for that library, in fp32.
    """
    from citadel.errors import UsageError
    from citadel.progress import Progress

    try:
        from citadel.model.export import export as write
        from citadel.model.sentence_transformers_format import export_sentence_transformers
    except ModuleNotFoundError as error:
        raise UsageError(f"export needs {error.name}: run `pip install 'citadel-ir[train]'`") from None
    if format_ not in ("onnx", "sentence-transformers"):
        raise UsageError(f"unknown format {format_!r}: choose onnx or sentence-transformers")
    if format_ != "onnx":
        with Progress("Exporting"):
            folder = export_sentence_transformers(checkpoint, out, overwrite)
        print(f"{folder}: for sentence-transformers 6")
        return
    lines: list[str] = []
    with Progress("Exporting"):
        folders = write(checkpoint, out, precision, overwrite, lines.append)
    print(*lines, sep="\n", end="\n" if lines else "")
    for folder in folders:
        size = (folder / "model.onnx").stat().st_size
        print(f"{folder}: {size / 1e6:.1f} MB")
