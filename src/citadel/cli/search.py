"""`citadel search INDEX QUERY…`: print hits, JSON or a TREC run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from citadel.cli.support.options import (
    Device,
    FilterText,
    FusionMethod,
    GpuMemory,
    IndexFolder,
    Mode,
    Model,
    QueryModel,
    Threads,
    Weights,
    parse_filter_option,
    parse_gpu_memory,
    parse_mode,
)
from citadel.cli.support.output import print_json
from citadel.cli.support.unknown_fields import report_unknown_fields
from citadel.errors import UsageError

if TYPE_CHECKING:
    from citadel.cli.support.batch_search import QueryHits, SearchOptions
    from citadel.search.index_hybrid import IndexHybrid
    from citadel.search.searcher import Searcher


def search(
    index: IndexFolder,
    queries: Annotated[
        list[str] | None, typer.Argument(metavar="[QUERY]...", help="Queries, each in quotes.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--queries", metavar="FILE", help="Queries: JSONL, TSV, a BEIR folder, or - for JSONL."),
    ] = None,
    vectors: Annotated[str | None, typer.Option(metavar="F.npz", help="Queries given as vectors.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Hits per query.")] = 10,
    filter: FilterText = None,
    offset: Annotated[int, typer.Option("--offset", min=0, help="Leave out the first N hits.")] = 0,
    min_score: Annotated[
        float | None, typer.Option("--min-score", help="Leave out hits with a lower score.")
    ] = None,
    min_relevance: Annotated[
        float | None, typer.Option("--min-relevance", help="Leave out hits with a lower relevance (0 to 1).")
    ] = None,
    group_by: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Only the best document of each value of a metadata field."),
    ] = None,
    run: Annotated[str | None, typer.Option(metavar="FILE", help="Write a TREC run; - prints it.")] = None,
    tag: Annotated[str, typer.Option(help="The last column of the run.")] = "citadel",
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON per query.")] = False,
    mode: Mode = "model",
    fusion: FusionMethod = None,
    weights: Weights = None,
    semantic: Annotated[
        str, typer.Option(metavar="auto|exact|graph|rerank|off", help="How semantic vectors are used.")
    ] = "auto",
    ef: Annotated[
        int | None,
        typer.Option(min=1, help="Graph: documents scored exactly.  [default: 2 k, at least 48]"),
    ] = None,
    effort: Annotated[
        float | None,
        typer.Option(
            help="Graph: 0 to 1, instead of --ef; more finds more and takes longer.  [default: 0.5]"
        ),
    ] = None,
    tau: Annotated[
        float | None, typer.Option(help="Dynamic router: ignore document weights up to this.")
    ] = None,
    model: Model = None,
    query_model: QueryModel = None,
    threads: Threads = None,
    device: Device = "cpu",
    gpu_memory: GpuMemory = "",
) -> None:
    """Search an index. Each QUERY is one query: put its words in quotes."""
    if sum((bool(queries), file is not None, vectors is not None)) != 1:
        raise UsageError("name either queries, or a file of them with --queries, or vectors with --vectors")
    if run == "-" and json:
        raise UsageError(
            "--run - and --json both print to standard output: name a file for the run, or leave one out"
        )
    from citadel.api import Index
    from citadel.cli.support.batch_search import warn_of_cuts
    from citadel.search.plan import SEMANTIC_MODES
    from citadel.types import Ranking

    options: SearchOptions = {
        "semantic_mode": semantic,
        "tau": tau,
        "filter": parse_filter_option(filter),
        "offset": offset,
        "min_score": min_score,
        "group_by": group_by,
        "ef": ef,
        "effort": effort,
    }
    if min_relevance is not None and vectors is not None:
        raise UsageError("--min-relevance is for text queries: leave it out, or use --min-score")
    chosen = parse_mode(mode, fusion, weights)
    if mode != "model" and vectors is not None:
        raise UsageError(f"--mode {mode} needs the text of a query: leave --vectors or --mode out")
    if run is not None:
        Ranking((), ()).trec(tag)  # refuses a bad tag before the search
    with Index.open(index, model=model, query_model=query_model, threads=threads) as opened:
        searcher = opened.searcher(
            **chosen.options(), threads=threads, device=device, gpu_memory=parse_gpu_memory(gpu_memory)
        )
        if searcher.settings.semantic is None and semantic in set(SEMANTIC_MODES) - {"auto"}:
            raise UsageError(f"{index}: this index holds no semantic vectors: leave --semantic out")
        report_unknown_fields(opened, options["filter"], [] if group_by is None else [group_by])
        results = _search(searcher, queries or [], file, vectors, k, min_relevance, options, run is not None)
        results = warn_of_cuts(results, searcher)
        if run is not None:
            results = _write_run(list(results), run, tag)
        if json:
            _print_json(results)
        elif run is None:
            words = searcher.settings.words
            analyser = searcher.settings.analyser if words is None else words.analyser
            _show(results, analyser, named=len(queries or []) != 1)


def _search(
    searcher: Searcher | IndexHybrid,
    queries: list[str],
    file: str | None,
    vectors: str | None,
    k: int,
    min_relevance: float | None,
    options: SearchOptions,
    is_run: bool,
) -> Iterator[QueryHits]:
    from citadel.cli.support.batch_search import check_trec_run, search_texts, search_vectors
    from citadel.search.searcher import Searcher

    results: Iterator[QueryHits]
    if vectors is not None and isinstance(searcher, Searcher):
        from citadel.cli.support.vectors import read_vector_queries

        arrays = read_vector_queries(vectors)
        ids, results = [id for id, _ in arrays], search_vectors(searcher, arrays, k, **options)
    else:
        texts = _read_texts(queries, file)
        ids, results = [id for id, _ in texts], search_texts(searcher, texts, k, min_relevance, **options)
    if is_run:
        check_trec_run(searcher, ids)  # before the search: `results` is lazy
    return results


def _read_texts(queries: list[str], file: str | None) -> list[tuple[str, str]]:
    """Return (id, text) of each query, from a file or from the arguments, numbered from 1."""
    from citadel.text.parse import check_text
    from citadel.text.queries import read_queries

    if file is not None:
        return list(read_queries(file))
    return [(str(number), check_text(query, "the query")) for number, query in enumerate(queries, 1)]


def _write_run(results: list[QueryHits], file: str, tag: str) -> Iterator[QueryHits]:
    """Write a run, all or nothing, and return the results."""
    from citadel.cli.support.batch_search import to_ranking

    ranking = to_ranking(results)
    if file == "-":
        print(ranking.trec(tag), end="")
    else:
        ranking.to_trec(file, tag)
    return iter(results)


def _print_json(results: Iterator[QueryHits]) -> None:
    from citadel.cli.support.batch_search import is_cut

    for query_id, query, hits in results:
        rows = [hit.to_dict() for hit in hits]
        print_json({"query_id": query_id, "query": query, "query_cut": is_cut(hits), "hits": rows})


def _show(results: Iterator[QueryHits], analyser: str | None, named: bool) -> None:
    from rich.console import Console

    from citadel.cli.support.render_hits import show
    from citadel.settings import DEFAULT_ANALYSER
    from citadel.text.analyser import get_analyser

    console = Console(highlight=False)
    for result in results:
        show(result, get_analyser(analyser or DEFAULT_ANALYSER), console, named)
