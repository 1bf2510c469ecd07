"""`citadel search INDEX QUERY…`: hits for a reader, as JSON, or as a TREC run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from citadel.cli.support.options import CardMemory, Device, GpuMemory, IndexFolder, Model, Threads, parse_gpu_memory
from citadel.cli.support.output import print_json
from citadel.errors import UsageError

if TYPE_CHECKING:
    from citadel.cli.support.batch_search import Answer
    from citadel.search.searcher import Searcher

K = 10
K_OF_A_RUN = 1000


def search(
    index: IndexFolder,
    queries: Annotated[list[str] | None, typer.Argument(metavar="[QUERY]...", help="Queries, each in quotes.")] = None,
    file: Annotated[
        str | None,
        typer.Option("--queries", metavar="FILE", help="Queries: JSONL, TSV, a BEIR folder, or - for JSONL."),
    ] = None,
    vectors: Annotated[str | None, typer.Option(metavar="F.npz", help="Queries given as vectors.")] = None,
    k: Annotated[int | None, typer.Option("-k", min=0, help="Hits a query.  [default: 10, with --run 1000]")] = None,
    run: Annotated[str | None, typer.Option(metavar="FILE", help="Write a TREC run; - prints it.")] = None,
    tag: Annotated[str, typer.Option(help="The last column of the run.")] = "citadel",
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON a query.")] = False,
    semantic: Annotated[
        str, typer.Option(metavar="auto|exact|rerank|off", help="How semantic vectors are used.")
    ] = "auto",
    tau: Annotated[float | None, typer.Option(help="Dynamic router: leave out document weights up to this.")] = None,
    model: Model = None,
    threads: Threads = None,
    device: Device = "cpu",
    gpu_memory: GpuMemory = "",
    card_memory: CardMemory = "",
) -> None:
    """Search an index. Each QUERY is one query: put its words in quotes."""
    if sum((bool(queries), file is not None, vectors is not None)) != 1:
        raise UsageError("name either queries, or a file of them with --queries, or vectors with --vectors")
    if run == "-" and json:
        raise UsageError("--run - and --json both print to standard output: name a file for the run, or leave one out")
    from citadel.api import Index
    from citadel.search.plan import SEMANTIC_MODES

    depth = k if k is not None else K_OF_A_RUN if run is not None else K
    with Index.open(index, model=model, threads=threads) as opened:
        memory = parse_gpu_memory(gpu_memory, card_memory)
        searcher = opened.searcher(threads=threads, device=device, gpu_memory=memory)
        if searcher.settings.semantic is None and semantic in set(SEMANTIC_MODES) - {"auto"}:
            raise UsageError(f"{index}: this index holds no semantic vectors: leave --semantic out")
        answers = _answers(searcher, queries or [], file, vectors, depth, semantic, tau)
        if run is not None:
            answers = _write_run(list(answers), run, tag)
        if json:
            _print_json(answers)
        elif run is None:
            _show(answers, searcher.settings.analyser, named=len(queries or []) != 1)


def _answers(
    searcher: Searcher,
    queries: list[str],
    file: str | None,
    vectors: str | None,
    k: int,
    semantic: str,
    tau: float | None,
) -> Iterator[Answer]:
    from citadel.cli.support.batch_search import answer_texts, answer_vectors
    from citadel.text.parse import check_text
    from citadel.text.queries import read_queries

    if vectors is not None:
        from citadel.cli.support.vectors import read_vector_queries

        return answer_vectors(searcher, read_vector_queries(vectors), k, semantic, tau)
    texts = [(str(place), check_text(query, "the query")) for place, query in enumerate(queries, 1)]
    return answer_texts(searcher, read_queries(file) if file is not None else texts, k, semantic, tau)


def _write_run(answers: list[Answer], file: str, tag: str) -> Iterator[Answer]:
    """Write all of a run or nothing; the answers again."""
    from citadel.types import Ranking

    ranking = Ranking(tuple(answer.query_id for answer in answers), tuple(answer.hits for answer in answers))
    if file == "-":
        print(ranking.trec(tag), end="")
    else:
        ranking.to_trec(file, tag)
    return iter(answers)


def _print_json(answers: Iterator[Answer]) -> None:
    for query_id, query, hits in answers:
        rows = [
            {
                "rank": hit.rank,
                "id": hit.id,
                "score": hit.score,
                "title": hit.title,
                "text": hit.text,
                "metadata": dict(hit.metadata),
            }
            for hit in hits
        ]
        print_json({"query_id": query_id, "query": query, "hits": rows})


def _show(answers: Iterator[Answer], analyser: str | None, named: bool) -> None:
    from rich.console import Console

    from citadel.cli.support.render_hits import show
    from citadel.text.analyser import get_analyser

    console = Console(highlight=False)
    for answer in answers:
        show(answer, get_analyser(analyser) if analyser else None, console, named)
