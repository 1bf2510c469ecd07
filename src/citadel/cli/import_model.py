"""`citadel import SOURCE --out DIR`: convert a model of another library to a model folder."""

from __future__ import annotations

from typing import Annotated

import typer


def import_model(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A folder of another library, a hub id, or a .ckpt file.")
    ],
    out: Annotated[str, typer.Option(metavar="DIR", help="The model folder to write.")],
    precision: Annotated[
        str, typer.Option(metavar="int8|fp32|both", help="How the weights are stored.")
    ] = "int8",
    kind: Annotated[
        str, typer.Option("--type", metavar="splade", help="What a folder without modules.json is.")
    ] = "",
    backbone: Annotated[
        str, typer.Option(metavar="DIR", help="Config and tokenizer of a .ckpt file: a folder or hub id.")
    ] = "bert-base-uncased",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing folder.")] = False,
) -> None:
    """Convert a model of sentence-transformers, PyLate, ColBERT or SPLADE. The result is verified first."""
    from citadel.errors import UsageError
    from citadel.progress import Progress

    try:
        from citadel.model.importer.convert import import_model as convert
    except ModuleNotFoundError as error:
        raise UsageError(f"import needs {error.name}: run `pip install 'citadel-ir[train]'`") from None
    lines: list[str] = []
    with Progress("Importing"):
        folders = convert(source, out, precision, overwrite, lines.append, kind, backbone)
    print(*lines, sep="\n", end="\n" if lines else "")
    for folder in folders:
        size = (folder / "model.onnx").stat().st_size
        print(f"{folder}: {size / 1e6:.1f} MB")
