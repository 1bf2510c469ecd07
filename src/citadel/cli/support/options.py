"""Options that several verbs share, and how their values are read."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from citadel.errors import UsageError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmg]i?)?b?", re.IGNORECASE)
MIN_MEMORY = 1 << 20

IndexFolder = Annotated[str, typer.Argument(metavar="INDEX", help="The folder of the index.")]
CorpusFile = Annotated[
    str,
    typer.Argument(
        metavar="CORPUS",
        help="JSONL or TSV (.gz, .xz, .zst too), a BEIR folder, an .npz file of vectors, or - for standard input.",
    ),
]
OnError = Annotated[
    str, typer.Option("--on-error", metavar="fail|skip", help="Stop at a bad line, or pass over it and count it.")
]
Format = Annotated[
    str | None, typer.Option("--format", metavar="jsonl|tsv", help="The corpus' format, where its name does not tell.")
]
Memory = Annotated[str, typer.Option("--memory", metavar="SIZE", help="Bound for what waits in memory, as 512MiB.")]
Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="Threads for searching and for a model; all cores by default."),
]
Model = Annotated[
    str | None,
    typer.Option("--model", metavar="DIR", help="The folder of the index's model, unless it is installed."),
]
Device = Annotated[
    str, typer.Option("--device", metavar="cpu|cuda", help="Where to search; cuda copies the index to a GPU first.")
]
GpuMemory = Annotated[
    str,
    typer.Option("--gpu-memory", metavar="SIZE", help="GPU memory for the index; lists beyond it stay in host memory."),
]
CardMemory = Annotated[str, typer.Option("--card-memory", hidden=True)]  # former name of --gpu-memory
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Fingerprint = Annotated[
    str | None, typer.Option("--fingerprint", metavar="NAME", help="Vectors: the name of the model that made them.")
]


def parse_size(text: str, option: str = "--memory") -> int:
    """A size in bytes.

    >>> parse_size("1GiB"), parse_size("64 MB"), parse_size("1048576")
    (1073741824, 64000000, 1048576)
    """
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * _UNITS[(match[2] or "").lower()]) if match else 0
    if size < MIN_MEMORY:
        raise UsageError(f"{option} {text!r} is not a size of 1 MiB or more: write it as 512MiB or 1GiB")
    return size


def parse_gpu_memory(text: str, former: str = "") -> int | None:
    """--gpu-memory, or the option under its former name, in bytes; None if neither is given.

    >>> parse_gpu_memory("80GiB"), parse_gpu_memory("")
    (85899345920, None)
    """
    text = text or former
    return parse_size(text, "--gpu-memory") if text else None
