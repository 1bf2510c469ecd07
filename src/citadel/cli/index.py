"""`citadel index CORPUS INDEX`: build an index, or resume an interrupted build."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import typer

from citadel.cli.support.options import (
    BatchTokens,
    CorpusFile,
    EncodeDevice,
    Fingerprint,
    Format,
    GenerateIds,
    IndexFolder,
    Memory,
    OnError,
    Precision,
    Threads,
    parse_size,
)
from citadel.errors import UsageError
from citadel.settings import (
    DEFAULT_ANALYSER,
    DEFAULT_B,
    DEFAULT_CHUNK_OVERLAP,
    DEFAULT_CHUNK_TOKENS,
    DEFAULT_CODEC,
    DEFAULT_K1,
    DEFAULT_RESIDUAL,
    RESIDUAL_BITS,
    EncodeOn,
    Field,
)

ModelToUse = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME|DIR",
        help="Text: small-en, tiny-en, a folder made by `citadel export`, or bm25.  [default]",
    ),
]
Router = Annotated[
    str | None,
    typer.Option(
        help="Without a model: bm25; for vectors dynamic, static, all_to_all, centroid, sparse or none."
    ),
]
Tau = Annotated[
    float | None,
    typer.Option(help="Dynamic router: drop document weights up to this.  [default: the model's]"),
]
Codec = Annotated[
    str | None,
    typer.Option(
        metavar="fp16|int8|pq2|pq1|residual4|residual2|residual1",
        help="How token vectors are stored; residual: ColBERT models.  [int8]",
    ),
]
SemanticCodec = Annotated[
    str | None, typer.Option(metavar="fp16|int8", help="How semantic vectors are stored.  [int8]")
]
Analyser = Annotated[
    str | None, typer.Option(metavar="english|plain|cjk|german|…", help="Text: the analyser of BM25 terms.")
]
K1 = Annotated[float | None, typer.Option("--k1", help=f"BM25: k1.  [default: {DEFAULT_K1}]")]
B = Annotated[float | None, typer.Option("--b", help=f"BM25: b.  [default: {DEFAULT_B}]")]
Long = Annotated[
    str | None, typer.Option(metavar="chunk|cut|fail", help="Texts longer than the model reads.  [chunk]")
]
ChunkTokens = Annotated[
    int | None, typer.Option(help=f"Tokens per passage of a long text.  [{DEFAULT_CHUNK_TOKENS}]")
]
ChunkOverlap = Annotated[
    int | None, typer.Option(help=f"Tokens that passages share.  [{DEFAULT_CHUNK_OVERLAP}]")
]
_LONG = "long chunk_tokens chunk_overlap"


def index(
    corpus: CorpusFile,
    index: IndexFolder,
    model: ModelToUse = None,
    router: Router = None,
    tau: Tau = None,
    codec: Codec = None,
    semantic_codec: SemanticCodec = None,
    fingerprint: Fingerprint = None,
    on_error: OnError = "fail",
    analyser: Analyser = None,
    k1: K1 = None,
    b: B = None,
    hybrid: Annotated[
        bool, typer.Option("--hybrid", help="Keep BM25 lists beside the model's, for search --mode hybrid.")
    ] = False,
    long: Long = None,
    chunk_tokens: ChunkTokens = None,
    chunk_overlap: ChunkOverlap = None,
    memory: Memory = "1GiB",
    threads: Threads = None,
    format: Format = None,
    generate_ids: GenerateIds = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing index.")] = False,
    graph: Annotated[
        bool, typer.Option("--graph/--no-graph", help="Build graphs of large segments, for faster searches.")
    ] = True,
    device: EncodeDevice = "cpu",
    precision: Precision = "bf16",
    batch_tokens: BatchTokens = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="auto|ADDRESS|local", help="Build a sharded index on a Ray cluster."),
    ] = None,
    shards: Annotated[int | None, typer.Option(min=1, help="With --cluster: number of shards.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="With --cluster: encoders.  [default: its cores or GPUs]")
    ] = None,
    commit_bytes: Annotated[
        int | None, typer.Option(hidden=True, min=1, envvar="CITADEL_COMMIT_BYTES")
    ] = None,
    commit_seconds: Annotated[
        float | None, typer.Option(hidden=True, envvar="CITADEL_COMMIT_SECONDS")
    ] = None,
) -> None:
    """Build an index from a corpus. Interrupted? Rerun the same command to resume."""
    from citadel.cli.support import resumable_build
    from citadel.encode.locate import BM25

    given = _Given(
        *(model, router, tau, codec, semantic_codec, fingerprint, analyser, k1, b, format),
        *(long, chunk_tokens, chunk_overlap, hybrid or None),
    )
    settings = _settings(corpus, given)
    encode_on = EncodeOn(device, precision, batch_tokens)
    if encode_on.is_gpu and settings.get("model") in (None, BM25):
        raise UsageError(f"--device {device} is for a model: bm25 and vectors are indexed on the CPU")
    options = _options(settings) | ({"format": format} if format else {})
    options |= {"generate-ids": "on"} if generate_ids else {}
    if cluster is not None or shards is not None or workers is not None:
        from citadel.cli.support import cluster_build

        given_build = cluster_build.ClusterBuild(
            *(corpus, index, settings, options, format, on_error, parse_size(memory), overwrite, graph),
            *(cluster, shards, workers, generate_ids, encode_on),
        )
        cluster_build.build(given_build)
        return
    if encode_on.is_gpu and commit_bytes is None:
        commit_bytes = resumable_build.GPU_COMMIT_BYTES
    limits = _given(commit_bytes=commit_bytes, commit_seconds=commit_seconds, generate_ids=generate_ids)
    job = resumable_build.BuildOptions(
        *(corpus, index, settings, options, format, on_error, parse_size(memory), threads, overwrite),
        **limits,
        graph=graph,
        encode_on=encode_on,
    )
    resumable_build.build(job)


class _Given(NamedTuple):
    """The options that determine the settings of an index; None if not given."""

    model: str | None
    router: str | None
    tau: float | None
    codec: str | None
    semantic_codec: str | None
    fingerprint: str | None
    analyser: str | None
    k1: float | None
    b: float | None
    format: str | None
    long: str | None
    chunk_tokens: int | None
    chunk_overlap: int | None
    hybrid: bool | None

    def pick(self, names: str) -> dict[str, Any]:
        """Return those of the named options that were given."""
        return _given(**{name: getattr(self, name) for name in names.split()})

    def refuse(self, names: str, kind: str) -> None:
        """Raise UsageError if one of the named options was given: they are for another kind of index."""
        for name in self.pick(names):
            raise UsageError(f"--{name.replace('_', '-')} is for {kind}: leave it out")


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _settings(corpus: str, given: _Given) -> dict[str, Any]:
    """Return the arguments of Index.create."""
    from citadel.cli.support.corpus_feed import is_vectors
    from citadel.encode.locate import BM25, text_model

    if given.model is not None and given.router is not None:
        raise UsageError("--router and --model exclude each other: a model has its own router")
    if is_vectors(corpus):
        given.refuse(f"model analyser k1 b format hybrid {_LONG}", "a corpus of text")
        return _vector_settings(corpus, given)
    is_bm25 = given.model is None and not given.hybrid and given.pick("router analyser k1 b")
    model = None if is_bm25 else text_model(given.model)
    if model is None:
        given.refuse(
            "tau codec semantic_codec fingerprint", "a corpus of vectors, an .npz file, or for a --model"
        )
        given.refuse(_LONG, "a model: bm25 reads whole texts")
        given.refuse("hybrid", "a model: bm25 has these lists already")
        return {"model": BM25, **given.pick("router analyser k1 b")}
    if not given.hybrid:
        given.refuse("analyser k1 b", "bm25 or --hybrid, not for a model alone")
    given.refuse("router", "an index without a model")
    given.refuse("fingerprint", "a corpus of vectors, an .npz file")
    return {"model": model, **given.pick(f"tau codec semantic_codec analyser k1 b hybrid {_LONG}")}


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
        "long": "chunk",
        "chunk_tokens": DEFAULT_CHUNK_TOKENS,
    }
    named = {name: value for name, value in settings.items() if name != "model"}
    model = text_model(settings.get("model"))
    if model is not None:
        named["model"] = fingerprint(find_model(model))  # a folder may move; its model may not change
    return {name: str(value) for name, value in named.items() if defaults.get(name) != value}


def _vector_settings(corpus: str, given: _Given) -> dict[str, Any]:
    """Return the arguments of Index.create, with dimensions from the arrays."""
    from citadel.cli.support.vectors import find_fields
    from citadel.text.parse import check_text

    if not check_text(given.fingerprint or "", "--fingerprint"):
        raise UsageError("vectors need --fingerprint NAME, the name of the model that made them")
    router, dimensions = find_fields(corpus, given.router)
    if given.router is None and given.codec in RESIDUAL_BITS:
        router = "centroid"
    usual = DEFAULT_RESIDUAL if router == "centroid" else DEFAULT_CODEC
    codecs = {"lexical": given.codec or usual, "semantic": given.semantic_codec or DEFAULT_CODEC}
    fields = {name: Field(width, codecs[name]) for name, width in dimensions.items()}
    return {"router": router, "fields": fields, **given.pick("tau fingerprint")}
