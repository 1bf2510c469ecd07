"""`citadel index CORPUS INDEX`: build an index; stopped, the same command goes on."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from citadel.cli.options import CorpusFile, Fingerprint, Format, IndexFolder, Memory, OnError, Threads, parse_size
from citadel.errors import UsageError


def index(
    corpus: CorpusFile,
    index: IndexFolder,
    model: Annotated[str | None, typer.Option(help="Text: `bm25`, the default until a model ships.")] = None,
    router: Annotated[
        str | None,
        typer.Option(help="Without a model: bm25, or for vectors dynamic, static, all_to_all, sparse, none."),
    ] = None,
    tau: Annotated[
        float | None, typer.Option(help="Vectors, dynamic router: drop document weights up to this.")
    ] = None,
    codec: Annotated[
        str | None, typer.Option(metavar="fp16|int8|pq2|pq1", help="Vectors: how they are stored.")
    ] = None,
    semantic_codec: Annotated[
        str | None, typer.Option(metavar="fp16|int8", help="Vectors: how the semantic ones are stored.")
    ] = None,
    fingerprint: Fingerprint = None,
    on_error: OnError = "fail",
    analyser: Annotated[str | None, typer.Option(metavar="english|plain", help="Text: how words become terms.")] = None,
    k1: Annotated[float | None, typer.Option("--k1", help="BM25: k1.  [default: 0.9]")] = None,
    b: Annotated[float | None, typer.Option("--b", help="BM25: b.  [default: 0.4]")] = None,
    memory: Memory = "1GiB",
    threads: Threads = None,  # noqa: ARG001 - a build uses one thread today; scripts may say how many it may have
    format: Format = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an index that is there.")] = False,
    commit_bytes: Annotated[int | None, typer.Option(hidden=True, min=1, envvar="CITADEL_COMMIT_BYTES")] = None,
    commit_seconds: Annotated[float | None, typer.Option(hidden=True, envvar="CITADEL_COMMIT_SECONDS")] = None,
) -> None:
    """Build an index from a corpus. A build that was stopped goes on with the same command."""
    if model is not None and router is not None:
        raise UsageError("--router goes without --model: the model brings its own router")
    from citadel.cli import build
    from citadel.cli.sources import is_vectors

    text = {"--model": model, "--analyser": analyser, "--k1": k1, "--b": b, "--format": format}
    vectors = {"--tau": tau, "--codec": codec, "--semantic-codec": semantic_codec, "--fingerprint": fingerprint}
    if is_vectors(corpus):
        _refuse(text, "a corpus of text")
        settings = _vector_settings(corpus, router, tau, codec, semantic_codec, fingerprint)
    else:
        _refuse(vectors, "a corpus of vectors, an .npz file")
        settings = _given(model=model, router=router, analyser=analyser, k1=k1, b=b)
    options = _options(settings) | ({"format": format} if format else {})
    limits = _given(commit_bytes=commit_bytes, commit_seconds=commit_seconds)
    build.build(build.Job(corpus, index, settings, options, format, on_error, parse_size(memory), overwrite, **limits))


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _refuse(options: dict[str, Any], kind: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"{name} is for {kind}: leave it out")


def _options(settings: dict[str, Any]) -> dict[str, str]:
    """The settings as a build remembers them: defaults are left out, so that naming one is no difference."""
    defaults = {"model": "bm25", "router": "bm25", "analyser": "english", "k1": 0.9, "b": 0.4}
    named = settings | ({"model": "bm25"} if settings.get("model") == "default" else {})
    return {name: str(value) for name, value in named.items() if defaults.get(name) != value}


def _vector_settings(
    corpus: str,
    router: str | None,
    tau: float | None,
    codec: str | None,
    semantic_codec: str | None,
    fingerprint: str | None,
) -> dict[str, Any]:
    """What Index.create takes, with dimensions from the arrays."""
    from citadel.cli.vectors import find_fields
    from citadel.config import Field
    from citadel.text.parse import check_text

    if not check_text(fingerprint or "", "--fingerprint"):
        raise UsageError("vectors need --fingerprint NAME, a name for the model that made them")
    found, dimensions = find_fields(corpus, router)
    codecs = {"lexical": codec or "int8", "semantic": semantic_codec or "int8"}
    fields = {name: Field(width, codecs[name]) for name, width in dimensions.items()}
    return _given(router=found, tau=tau, fingerprint=fingerprint, fields=fields)
