"""`citadel index CORPUS INDEX`: build an index, or resume an interrupted build."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from citadel.cli.support.options import (
    CorpusFile,
    Fingerprint,
    Format,
    IndexFolder,
    Memory,
    OnError,
    Threads,
    parse_size,
)
from citadel.errors import UsageError
from citadel.settings import DEFAULT_ANALYSER, DEFAULT_B, DEFAULT_CODEC, DEFAULT_K1, Field


def index(
    corpus: CorpusFile,
    index: IndexFolder,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Text: a folder made by `citadel export`, default, or bm25.  [default]"
        ),
    ] = None,
    router: Annotated[
        str | None,
        typer.Option(help="Without a model: bm25; for vectors dynamic, static, all_to_all, sparse or none."),
    ] = None,
    tau: Annotated[
        float | None,
        typer.Option(help="Dynamic router: drop document weights up to this.  [default: the model's]"),
    ] = None,
    codec: Annotated[
        str | None, typer.Option(metavar="fp16|int8|pq2|pq1", help="How token vectors are stored.  [int8]")
    ] = None,
    semantic_codec: Annotated[
        str | None, typer.Option(metavar="fp16|int8", help="How semantic vectors are stored.  [int8]")
    ] = None,
    fingerprint: Fingerprint = None,
    on_error: OnError = "fail",
    analyser: Annotated[
        str | None, typer.Option(metavar="english|plain", help="Text: the analyser of BM25 terms.")
    ] = None,
    k1: Annotated[float | None, typer.Option("--k1", help=f"BM25: k1.  [default: {DEFAULT_K1}]")] = None,
    b: Annotated[float | None, typer.Option("--b", help=f"BM25: b.  [default: {DEFAULT_B}]")] = None,
    memory: Memory = "1GiB",
    threads: Threads = None,
    format: Format = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing index.")] = False,
    no_graph: Annotated[bool, typer.Option("--no-graph", help="Build no graph for graph search.")] = False,
    commit_bytes: Annotated[
        int | None, typer.Option(hidden=True, min=1, envvar="CITADEL_COMMIT_BYTES")
    ] = None,
    commit_seconds: Annotated[
        float | None, typer.Option(hidden=True, envvar="CITADEL_COMMIT_SECONDS")
    ] = None,
) -> None:
    """Build an index from a corpus. Interrupted? Rerun the same command to resume."""
    if model is not None and router is not None:
        raise UsageError("--router and --model exclude each other: a model has its own router")
    from citadel.cli.support import resumable_build
    from citadel.cli.support.corpus_feed import is_vectors
    from citadel.encode.locate import BM25, text_model

    terms = {"--analyser": analyser, "--k1": k1, "--b": b}
    stored = {"--tau": tau, "--codec": codec, "--semantic-codec": semantic_codec}
    if is_vectors(corpus):
        _refuse({"--model": model, **terms, "--format": format}, "a corpus of text")
        settings = _vector_settings(corpus, router, tau, codec, semantic_codec, fingerprint)
    elif (
        named := None if model is None and _given(router=router, **terms) else text_model(model)
    ) is not None:
        _refuse(terms, "bm25, not for a model")
        _refuse({"--fingerprint": fingerprint}, "a corpus of vectors, an .npz file")
        settings = _given(model=named, tau=tau, codec=codec, semantic_codec=semantic_codec)
    else:
        _refuse(
            {**stored, "--fingerprint": fingerprint}, "a corpus of vectors, an .npz file, or for a --model"
        )
        settings = _given(model=BM25, router=router, analyser=analyser, k1=k1, b=b)
    options = _options(settings) | ({"format": format} if format else {})
    limits = _given(commit_bytes=commit_bytes, commit_seconds=commit_seconds)
    job = resumable_build.BuildOptions(
        *(corpus, index, settings, options, format, on_error, parse_size(memory), threads, overwrite),
        **limits,
        graph=not no_graph,
    )
    resumable_build.build(job)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _refuse(options: dict[str, Any], kind: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"{name} is for {kind}: leave it out")


def _options(settings: dict[str, Any]) -> dict[str, str]:
    """Return the settings that a build stores, without defaults: naming a default makes no difference."""
    from citadel.encode.locate import find_model, fingerprint, text_model

    defaults = {
        "router": "bm25",
        "analyser": DEFAULT_ANALYSER,
        "k1": DEFAULT_K1,
        "b": DEFAULT_B,
        "codec": DEFAULT_CODEC,
        "semantic_codec": DEFAULT_CODEC,
    }
    named = {name: value for name, value in settings.items() if name != "model"}
    model = text_model(settings.get("model"))
    if model is not None:
        named["model"] = fingerprint(find_model(model))  # a folder may move; its model may not change
    return {name: str(value) for name, value in named.items() if defaults.get(name) != value}


def _vector_settings(
    corpus: str,
    router: str | None,
    tau: float | None,
    codec: str | None,
    semantic_codec: str | None,
    fingerprint: str | None,
) -> dict[str, Any]:
    """Return the arguments of Index.create, with dimensions from the arrays."""
    from citadel.cli.support.vectors import find_fields
    from citadel.text.parse import check_text

    if not check_text(fingerprint or "", "--fingerprint"):
        raise UsageError("vectors need --fingerprint NAME, the name of the model that made them")
    fitting, dimensions = find_fields(corpus, router)
    codecs = {"lexical": codec or DEFAULT_CODEC, "semantic": semantic_codec or DEFAULT_CODEC}
    fields = {name: Field(width, codecs[name]) for name, width in dimensions.items()}
    return _given(router=fitting, tau=tau, fingerprint=fingerprint, fields=fields)
