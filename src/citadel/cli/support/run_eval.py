"""What `citadel eval` does: find queries and judgements, search or read a run, measure, compare, print."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from citadel.cli.support.output import one_line, plural, print_json, say
from citadel.errors import InputError, UsageError

if TYPE_CHECKING:
    from citadel.eval import Comparison, Dataset
    from citadel.types import Ranking

DEPTH = 1000  # hits a query, unless a measure looks further
Values = dict[str, dict[str, float]]  # measure → query → value


@dataclass(frozen=True)
class Asked:
    """The options of one call."""

    index: str | None
    queries: str
    qrels: str
    dataset: str
    split: str
    measures: str
    run: str
    baseline: str
    relevant: int | None
    drop_same_id: bool | None
    model: str | None
    threads: int | None
    device: str = "cpu"
    gpu_memory: int | None = None


@dataclass(frozen=True)
class Judged:
    """What came of it."""

    dataset: Dataset
    ranking: Ranking
    values: Values
    baseline: Values | None = None

    @property
    def means(self) -> dict[str, float]:
        return {name: mean(found) for name, found in self.values.items()}

    def compared(self, name: str) -> Comparison | None:
        """One measure against the baseline."""
        from citadel.eval import compare

        return compare(self.values[name], self.baseline[name]) if self.baseline is not None else None


def mean(values: Mapping[str, float]) -> float:
    """The mean over queries.

    >>> mean({"q1": 1.0, "q2": 0.0})
    0.5
    """
    return sum(values.values()) / len(values)


def judge(asked: Asked) -> Judged:
    """Measure what was asked for."""
    from citadel.eval import DEFAULT_MEASURES, evaluate_queries, read_run

    names = asked.measures.split() or list(DEFAULT_MEASURES)
    depth = _depth(names)
    dataset = _dataset(asked)
    ranking = _one(read_run(asked.run), asked.run, dataset) if asked.run else _search(asked, dataset, depth)
    values = evaluate_queries(ranking, dataset.qrels, names, dataset.relevant)
    if not asked.baseline:
        return Judged(dataset, ranking, values)
    other = _one(read_run(asked.baseline), asked.baseline, dataset)
    return Judged(dataset, ranking, values, evaluate_queries(other, dataset.qrels, names, dataset.relevant))


def _dataset(asked: Asked) -> Dataset:
    """Queries and judgements from --dataset, or from --queries and --qrels."""
    from citadel.eval import open_dataset

    if asked.dataset:
        if asked.queries or asked.qrels:
            raise UsageError("--dataset names queries and judgements itself: leave --queries and --qrels out")
        found = open_dataset(asked.dataset, asked.split)
    else:
        found = _from_files(asked)
    relevant = found.relevant if asked.relevant is None else asked.relevant
    drop = found.drop_same_id if asked.drop_same_id is None else asked.drop_same_id
    return replace(found, relevant=relevant, drop_same_id=drop)


def _from_files(asked: Asked) -> Dataset:
    from citadel.eval.datasets import SPLIT, Dataset, asks_to_drop, documents_of, qrels_file
    from citadel.eval.runs import read_qrels
    from citadel.text.queries import read_queries

    if not asked.qrels:
        raise UsageError("judgements are missing: name a file with --qrels, or a collection with --dataset")
    if bool(asked.queries) == bool(asked.run):
        raise UsageError("--queries goes with an INDEX, and an INDEX needs --queries")
    split = asked.split or SPLIT
    qrels = read_qrels(qrels_file(asked.qrels, split) if os.path.isdir(asked.qrels) else asked.qrels)
    queries = dict(read_queries(asked.queries)) if asked.queries else {}
    folder = os.path.basename(os.path.abspath(asked.queries or asked.qrels))
    return Dataset(folder, queries, qrels, lambda: documents_of(asked.queries), asks_to_drop(folder))


def _depth(names: list[str]) -> int:
    from citadel.eval.measures import parse_measure

    return max(DEPTH, *(int(parse_measure(name).params.get("cutoff", 0)) for name in names))


def _one(ranking: Ranking, file: str, dataset: Dataset) -> Ranking:
    """A run that was read: without documents that are queries, and not of another collection."""
    from citadel.eval import drop_same_id

    missing = len(dataset.qrels.keys() - set(ranking.query_ids))
    if missing == len(dataset.qrels):
        raise InputError("none of the judged queries is in this run: is it of another collection?", file)
    if missing:
        say(f"{plural(missing, 'judged query', 'judged queries')} not in {file}: counted with 0")
    return drop_same_id(ranking) if dataset.drop_same_id else ranking


def _search(asked: Asked, dataset: Dataset, depth: int) -> Ranking:
    from citadel.api import Index
    from citadel.cli.support.batch_search import answer_texts
    from citadel.eval import drop_same_id
    from citadel.types import Ranking

    wanted = dataset.judged
    if missing := len(dataset.qrels) - len(wanted):
        where = asked.queries or asked.dataset
        say(f"{plural(missing, 'judged query', 'judged queries')} not in {where}: counted with 0")
    with Index.open(asked.index or "", model=asked.model, threads=asked.threads) as opened:
        searcher = opened.searcher(threads=asked.threads, device=asked.device, gpu_memory=asked.gpu_memory)
        answers = list(answer_texts(searcher, wanted, depth + dataset.drop_same_id))
    ranking = Ranking(tuple(answer.query_id for answer in answers), tuple(answer.hits for answer in answers))
    return drop_same_id(ranking, depth) if dataset.drop_same_id else ranking


def save(found: Judged, run: str, qrels: str, queries: str) -> None:
    """Write what was asked for."""
    from citadel.eval import write_qrels, write_run
    from citadel.types import write_whole

    if run:
        write_run(run, found.ranking)
    if qrels:
        write_qrels(qrels, found.dataset.qrels)
    if queries:
        write_whole(queries, [json.dumps({"measures": found.values}) + "\n"])


def print_values(found: Judged, as_json: bool, per_query: bool) -> None:
    """The means, one a line, or everything as JSON."""
    if as_json:
        print_json(_record(found, per_query))
        return
    for name, values in found.values.items():
        for query, value in values.items() if per_query else ():
            print(f"{name} {one_line(query)} {value:.4f}")
        print(f"{name} {mean(values):.4f}{_against(found, name)}")


def _against(found: Judged, name: str) -> str:
    compared = found.compared(name)
    if compared is None or found.baseline is None:
        return ""
    interval = f"[{compared.low:+.4f}, {compared.high:+.4f}]"
    return f"  baseline {mean(found.baseline[name]):.4f}  {compared.difference:+.4f} {interval}  p {compared.p:.4f}"


def _record(found: Judged, per_query: bool) -> dict[str, object]:
    record: dict[str, object] = {"measures": found.means, "judged": len(found.dataset.qrels)}
    if found.baseline is not None:
        compared = {name: found.compared(name) for name in found.values}
        record["baseline"] = {
            name: {"mean": mean(found.baseline[name]), **_finite(asdict(one))} for name, one in compared.items() if one
        }
    return record | ({"queries": found.values} if per_query else {})


def _finite(figures: dict[str, float]) -> dict[str, float | None]:
    """JSON has no infinity, which is t where every query differs alike."""
    return {name: value if abs(value) < float("inf") else None for name, value in figures.items()}
