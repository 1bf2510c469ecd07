"""`citadel bench latency`: time each stage of a search, one query at a time."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from citadel.cli.support.options import Device, Json, Model, QueryModel
from citadel.cli.support.output import print_json, say
from citadel.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from citadel.api import Index
    from citadel.bench.latency import Bench, Latency
    from citadel.types import RoutedTokens

bench_app = typer.Typer(help="Time this machine with an index.", rich_markup_mode=None, no_args_is_help=True)


@bench_app.callback()
def bench() -> None:
    """Time this machine with an index."""


@bench_app.command()
def latency(
    index: Annotated[
        str | None, typer.Argument(metavar="[INDEX]", help="The index to time; not with --like.")
    ] = None,
    queries: Annotated[str, typer.Option(metavar="FILE", help="Queries: JSONL, TSV or a BEIR folder.")] = "",
    like: Annotated[
        str, typer.Option(metavar="INDEX", help="Time a synthetic index with this one's lists.")
    ] = "",
    documents: Annotated[int, typer.Option(min=1, help="With --like: number of documents.")] = 8_841_823,
    limit: Annotated[int, typer.Option(min=1, help="Time the first N queries.")] = 200,
    tokens: Annotated[int, typer.Option(min=1, help="Without --queries: tokens per random query.")] = 16,
    k: Annotated[int, typer.Option("-k", min=1, help="Hits per query.")] = 10,
    semantic: Annotated[
        str, typer.Option(metavar="auto|exact|graph|rerank|off", help="As in search.")
    ] = "auto",
    trials: Annotated[
        int, typer.Option(min=1, help="Number of trials; the one with the lowest mean counts.")
    ] = 3,
    into: Annotated[
        str, typer.Option(metavar="F.json", help="Store the result as `latency` of this measurement.")
    ] = "",
    folder: Annotated[
        str, typer.Option(metavar="DIR", help="Folder for the temporary synthetic index.")
    ] = "",
    device: Device = "cpu",
    json: Json = False,
    model: Model = None,
    query_model: QueryModel = None,
) -> None:
    """Time each stage of a search: mean, p50, p95, p99 and the floor set by memory bandwidth.

    One query at a time on one thread, after a warm-up. Without --queries, queries are random, with keys drawn
    by their frequency in the documents. With --device cuda, the search is one stage, including the copy of
    its result to the host."""
    if (index is None) == (not like):
        raise UsageError("name either an INDEX or a synthetic one with --like INDEX")
    from citadel.api import Index
    from citadel.bench.latency import described, measure_latency
    from citadel.paper.record import machine
    from citadel.progress import Progress

    with (
        Index.open(index or like, model=model, query_model=query_model, threads=1) as opened,
        tempfile.TemporaryDirectory(prefix="citadel-bench-", dir=folder or None) as scratch,
    ):
        if opened.settings.router == "centroid" and (like or device != "cpu"):
            raise UsageError("a centroid index is timed as it is, on the CPU: leave --like and --device out")
        sample = _queries(opened, queries, limit, tokens)
        synthetic = _synthetic(opened, sample, documents, scratch) if like else None
        prepared = _bench(opened, sample, k, semantic, synthetic, device)
        with Progress("Timing", "trials", trials) as progress:
            result = measure_latency(prepared, trials, progress)
        record = described(prepared, result, machine() | _gpu_name(prepared), bool(like))
    if into:
        _store(into, record)
    if json:
        print_json(record)
    else:
        _show(record, result)


def _queries(opened: Index, file: str, limit: int, tokens: int) -> list[Any]:
    """Return the texts of a file, or random queries as routed tokens."""
    from citadel.bench.random_queries import random_queries
    from citadel.text.queries import read_queries

    if opened.settings.router == "bm25":
        raise UsageError("bm25 is timed by benchmarks/bm25.py: name an index of a model or of vectors")
    if file and opened.settings.model is None:
        raise UsageError("this index has no model to encode texts with: leave --queries out")
    if file:
        return [text for _, text in read_queries(file)][:limit]
    return random_queries(opened.searcher().snapshot, limit, tokens)


def _synthetic(opened: Index, queries: list[Any], documents: int, scratch: str) -> Any:
    from citadel.bench.synthetic import synthetic_index
    from citadel.progress import Progress

    snapshot = opened.searcher().snapshot
    routed = [opened.encode_query(query) if isinstance(query, str) else query for query in queries]
    say(f"generating the lists of {len(queries):,} queries for {documents:,} documents in {scratch}")
    keys = [int(key) for text in routed for key in text.keys]
    with Progress("Generating the lists", "rows") as progress:

        def show(done: int, total: int) -> None:
            progress.total = total
            progress(done)

        return synthetic_index(snapshot, documents, keys, scratch, show)


def _bench(opened: Index, queries: list[Any], k: int, semantic: str, synthetic: Any, device: str) -> Bench:
    from citadel.bench.latency import Bench
    from citadel.routing import get_router
    from citadel.search.centroid import CentroidEngine
    from citadel.search.cpu import CpuEngine
    from citadel.search.plan import plan_options

    snapshot = synthetic or opened.searcher().snapshot
    floor = get_router(snapshot.settings.router).floor
    is_centroid = snapshot.settings.router == "centroid"
    engine = CentroidEngine(snapshot) if is_centroid else CpuEngine(snapshot, floor, (0.0, 0.0), 1)
    encode = None
    if queries and isinstance(queries[0], str):
        encode = opened.encode_query if device == "cpu" else _encode_on(opened, device)
    options, ids = plan_options(snapshot, k, semantic, None), None if synthetic else snapshot.owner_ids
    gpu = None if device == "cpu" else _gpu(snapshot, floor, device)
    return Bench(snapshot, engine, options, queries, encode, ids, gpu)


def _encode_on(opened: Index, device: str) -> Callable[[str], RoutedTokens]:
    encoder = opened.encoder_on(device)
    return lambda text: encoder.encode_queries([text])[0]


def _gpu(snapshot: Any, floor: bool, device: str) -> Any:
    try:
        from citadel.bench.gpu_stages import GpuSearch
    except ImportError as error:
        raise UsageError(
            f"a GPU needs more packages ({error}): run `pip install 'citadel-ir[gpu]'`"
        ) from None
    return GpuSearch(snapshot, floor, device)


def _gpu_name(prepared: Bench) -> dict[str, str]:
    return {} if prepared.gpu is None else {"card": prepared.gpu.name}


def _store(file: str, record: dict[str, Any]) -> None:
    from dataclasses import replace

    from citadel.paper.record import read_measurement, write_measurement

    write_measurement(file, replace(read_measurement(file), latency=record))


def _show(record: dict[str, Any], result: Latency) -> None:
    kind = "synthetic documents" if record["synthetic"] else "documents"
    gpu = record["machine"].get("card")
    where = gpu or "one thread"
    print(f"{record['documents']:,} {kind}, {result.queries:,} queries, top {record['k']}, {where}")
    print(f"{'ms per query':<18}{'mean':>10}{'p50':>10}{'p95':>10}{'p99':>10}{'floor':>10}")
    for stage, figures in result.milliseconds.items():
        floor = result.floor(stage)
        cells = "".join(f"{figures[name]:>10.4f}" for name in ("mean", "p50", "p95", "p99"))
        print(f"{stage:<18}{cells}{'–' if floor is None else f'{floor:.4f}':>10}")
    _show_traffic(result.traffic)
    reads = "the GPU copies" if gpu else "one core reads"
    speed = f"{reads} {result.bandwidth / 1e9:.1f} GB/s"
    print(f"{speed}: this sets the floor; on a small index, caches can be faster")


def _show_traffic(traffic: Mapping[str, float]) -> None:
    products = f"{traffic['token_products']:,.0f} token, {traffic['semantic_products']:,.0f} semantic"
    print(f"dot products per query: {products}")
    size = f"{traffic['list_bytes']:,.0f} of lists, {traffic['semantic_bytes']:,.0f} of semantic vectors"
    print(f"bytes per query: {size}")
