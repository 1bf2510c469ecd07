"""`citadel eval`: measures of an index or a run against judgements."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from citadel.cli.options import Json, Model, Threads
from citadel.cli.output import one_line, plural, print_json, say
from citadel.errors import UsageError

if TYPE_CHECKING:
    from citadel.eval.runs import Qrels
    from citadel.types import Ranking

DEPTH = 1000  # hits a query, unless a measure looks further


def evaluate(
    index: Annotated[
        str | None, typer.Argument(metavar="[INDEX]", help="The folder of the index; not with --run.")
    ] = None,
    queries: Annotated[str | None, typer.Option(metavar="FILE", help="Queries: JSONL, TSV or a BEIR folder.")] = None,
    qrels: Annotated[str, typer.Option(metavar="FILE", help="Judgements: TREC, BEIR, or a BEIR folder.")] = "",
    measures: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="Names of ir-measures, with spaces between.  [default: nDCG@10 RR@10 R@1000]"
        ),
    ] = "",
    run: Annotated[str | None, typer.Option(metavar="RUN", help="A TREC run to measure instead of an index.")] = None,
    json: Json = False,
    per_query: Annotated[bool, typer.Option("--per-query", help="The values of each judged query too.")] = False,
    model: Model = None,
    threads: Threads = None,
) -> None:
    """Measure an index, or a run, over the judged queries; one without an answer scores 0."""
    _check_arguments(index, queries, qrels, run)
    from citadel.eval import DEFAULT_MEASURES, evaluate_queries, read_qrels, read_run

    names = measures.split() or list(DEFAULT_MEASURES)
    judged = read_qrels(_qrels_file(qrels))
    depth = _depth(names)
    where = (index or "", model, threads)
    ranking = read_run(run) if run is not None else _search(where, queries or "", judged, depth)
    values = evaluate_queries(ranking, judged, names)
    means = {name: sum(found.values()) / len(found) for name, found in values.items()}
    if json:
        print_json({"measures": means, "judged": len(judged)} | ({"queries": values} if per_query else {}))
        return
    for name in names:
        for query, value in values[name].items() if per_query else ():
            print(f"{name} {one_line(query)} {value:.4f}")
        print(f"{name} {means[name]:.4f}")


def _check_arguments(index: str | None, queries: str | None, qrels: str, run: str | None) -> None:
    if not qrels:
        raise UsageError("judgements are missing: name a file with --qrels")
    if (index is None) == (run is None):
        raise UsageError("name either an INDEX with --queries or a run with --run")
    if (index is None) != (queries is None):
        raise UsageError("--queries goes with an INDEX, and an INDEX needs --queries")


def _qrels_file(given: str) -> str:
    """The file itself, or the test judgements of a BEIR folder."""
    if not os.path.isdir(given):
        return given
    inner = os.path.join(given, "qrels")
    return os.path.join(inner if os.path.isdir(inner) else given, "test.tsv")


def _depth(names: list[str]) -> int:
    from citadel.eval.measures import parse_measure

    return max(DEPTH, *(int(parse_measure(name).params.get("cutoff", 0)) for name in names))


def _search(where: tuple[str, str | None, int | None], queries: str, judged: Qrels, depth: int) -> Ranking:
    from citadel.cli.answers import answer_texts
    from citadel.library import Index
    from citadel.text.queries import read_queries
    from citadel.types import Ranking

    wanted = [(id, text) for id, text in read_queries(queries) if id in judged]
    if missing := len(judged) - len(wanted):
        say(f"{plural(missing, 'judged query', 'judged queries')} not in {queries}: counted with 0")
    index, model, threads = where
    with Index.open(index, model=model, threads=threads) as opened:
        answers = list(answer_texts(opened.searcher(threads=threads), wanted, depth))
    return Ranking(tuple(answer.query_id for answer in answers), tuple(answer.hits for answer in answers))
