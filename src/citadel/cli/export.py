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
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing folder.")] = False,
) -> None:
    """Write a model folder: ONNX graph, tokenizer, config and model card. The result is verified first."""
    from citadel.errors import UsageError
    from citadel.progress import Progress

    try:
        from citadel.model.export import export as write
    except ModuleNotFoundError as error:
        raise UsageError(f"export needs {error.name}: run `pip install 'citadel-ir[train]'`") from None
    lines: list[str] = []
    with Progress("Exporting"):
        folders = write(checkpoint, out, precision, overwrite, lines.append)
    print(*lines, sep="\n", end="\n" if lines else "")
    for folder in folders:
        size = (folder / "model.onnx").stat().st_size
        print(f"{folder}: {size / 1e6:.1f} MB")
