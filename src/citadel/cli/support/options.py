"""Options that several commands share, and parsers for their values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from citadel.errors import UsageError

if TYPE_CHECKING:
    from citadel.filter.tree import Filter

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmg]i?)?b?", re.IGNORECASE)
MIN_MEMORY = 1 << 20
_LOG_LEVELS = ("debug", "info", "warning", "error")

IndexFolder = Annotated[str, typer.Argument(metavar="INDEX", help="The index folder.")]
CorpusFile = Annotated[
    str,
    typer.Argument(
        metavar="CORPUS",
        help="JSONL or TSV (.gz, .xz, .zst too), a BEIR folder, an .npz of vectors, or - (stdin).",
    ),
]
OnError = Annotated[
    str, typer.Option("--on-error", metavar="fail|skip", help="Stop at a bad line, or skip and count it.")
]
Format = Annotated[
    str | None, typer.Option("--format", metavar="jsonl|tsv", help="Corpus format, if its name does not say.")
]
GenerateIds = Annotated[
    bool, typer.Option("--generate-ids", help="JSONL: derive an id from each line that has none.")
]
Memory = Annotated[str, typer.Option("--memory", metavar="SIZE", help="Memory limit, e.g. 512MiB.")]
Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="Threads for search and model; default: all cores."),
]
Model = Annotated[
    str | None,
    typer.Option("--model", metavar="DIR", help="The index's model folder, unless it is installed."),
]
QueryModel = Annotated[
    str | None,
    typer.Option(
        "--query-model", metavar="NAME|DIR", help="Encode queries with another model of the same space."
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device", metavar="cpu|cuda", help="Where to search; cuda copies the index to the GPU first."
    ),
]
GpuMemory = Annotated[
    str,
    typer.Option(
        "--gpu-memory",
        "--card-memory",
        metavar="SIZE",
        help="GPU memory limit; the rest of the index stays in RAM.",
    ),
]
EncodeDevice = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="cpu|cuda[:N][,…]",
        help="Where documents are encoded: the CPU, or one GPU or more.",
    ),
]
Precision = Annotated[
    str, typer.Option("--precision", metavar="bf16|fp32", help="On a GPU: the precision of the model.")
]
BatchTokens = Annotated[
    int | None,
    typer.Option("--batch-tokens", min=512, help="On a GPU: tokens encoded at a time.  [131072]"),
]
FilterText = Annotated[
    str | None,
    typer.Option(
        "--filter",
        metavar="JSON",
        help="""Only documents whose metadata match, e.g. '{"year": {"$gte": 1900}}'.""",
    ),
]
Mode = Annotated[
    str,
    typer.Option(
        "--mode", metavar="model|bm25|hybrid", help="Which lists of an index built with --hybrid to search."
    ),
]
FusionMethod = Annotated[
    str | None, typer.Option("--fusion", metavar="linear|rrf", help="Hybrid: how scores are fused.  [linear]")
]
Weights = Annotated[
    str | None,
    typer.Option(metavar="M,B", help="Hybrid: weights of model and BM25.  [0.85,0.15]"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LogLevel = Annotated[
    str,
    typer.Option(
        "--log-level", envvar="CITADEL_LOG_LEVEL", metavar="debug|info|warning|error", help="Log level."
    ),
]
Fingerprint = Annotated[
    str | None,
    typer.Option("--fingerprint", metavar="NAME", help="Vectors: name of the model that made them."),
]


class SearchMode(NamedTuple):
    """The mode of a search; method and weights are those of the mode hybrid."""

    mode: str
    fusion: str | None = None
    weights: tuple[float, ...] | None = None

    def options(self) -> dict[str, Any]:
        """The arguments of Index.searcher."""
        given = {"fusion": self.fusion, "weights": self.weights}
        return {"mode": self.mode} | {name: value for name, value in given.items() if value is not None}


def parse_mode(mode: str, fusion: str | None, weights: str | None) -> SearchMode:
    """Check --mode, --fusion and --weights.

    >>> parse_mode("hybrid", None, "0.7,0.3").options()
    {'mode': 'hybrid', 'weights': (0.7, 0.3)}
    """
    if mode not in ("model", "bm25", "hybrid"):
        raise UsageError(f"--mode {mode}: choose one of model, bm25, hybrid")
    if mode != "hybrid" and (fusion is not None or weights is not None):
        raise UsageError("--fusion and --weights are for --mode hybrid: leave them out")
    if weights is None:
        return SearchMode(mode, fusion)
    try:
        return SearchMode(mode, fusion, tuple(float(weight) for weight in weights.split(",")))
    except ValueError:
        raise UsageError(f"--weights {weights}: write two numbers, such as 0.7,0.3") from None


def parse_size(text: str, option: str = "--memory") -> int:
    """Parse a size in bytes.

    >>> parse_size("1GiB"), parse_size("64 MB"), parse_size("1048576")
    (1073741824, 64000000, 1048576)
    """
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * _UNITS[(match[2] or "").lower()]) if match else 0
    if size < MIN_MEMORY:
        raise UsageError(f"{option} {text!r} is not a size of 1 MiB or more: write it as 512MiB or 1GiB")
    return size


def parse_log_level(level: str) -> str:
    """Check a log level.

    >>> parse_log_level("debug")
    'debug'
    """
    if level not in _LOG_LEVELS:
        raise UsageError(f"unknown log level {level!r}: choose one of {', '.join(_LOG_LEVELS)}")
    return level


def parse_gpu_memory(text: str) -> int | None:
    """Parse --gpu-memory in bytes; None if it is not given.

    >>> parse_gpu_memory("80GiB"), parse_gpu_memory("")
    (85899345920, None)
    """
    return parse_size(text, "--gpu-memory") if text else None


def parse_filter_option(text: str | None) -> Filter | None:
    """Parse --filter; None if it is not given.

    >>> parse_filter_option('{"lang": "en"}')
    Compare(field='lang', operator='$eq', value='en')
    """
    if text is None:
        return None
    from citadel.filter.parse import parse_filter_json

    return parse_filter_json(text)
