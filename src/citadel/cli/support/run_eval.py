"""Run `citadel eval`: read queries and judgements, search or read a run, measure, compare, print."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from citadel.cli.support.options import SearchMode
from citadel.cli.support.output import one_line, plural, print_json, say
from citadel.errors import InputError, UsageError

if TYPE_CHECKING:
    from citadel.api import Index
    from citadel.eval import Comparison, Dataset
    from citadel.types import Ranking

DEPTH = 1000  # hits per query, or more if a measure has a larger cutoff
IDS_PER_LOOKUP = 1000
Values = dict[str, dict[str, float]]  # measure → query → value


@dataclass(frozen=True)
class EvalOptions:
    """The options of one `citadel eval`."""

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
    writes_run: bool = False
    query_model: str | None = None
    mode: SearchMode = field(default_factory=lambda: SearchMode("model"))


@dataclass(frozen=True)
class EvalResult:
    """Result of an evaluation."""

    dataset: Dataset
    ranking: Ranking
    values: Values
    baseline: Values | None = None

    @property
    def means(self) -> dict[str, float]:
        return {name: mean(values) for name, values in self.values.items()}

    def compared(self, name: str) -> Comparison | None:
        """One measure against the baseline."""
        from citadel.eval import compare

        return compare(self.values[name], self.baseline[name]) if self.baseline is not None else None


def mean(values: Mapping[str, float]) -> float:
    """Mean over queries.

    >>> mean({"q1": 1.0, "q2": 0.0})
    0.5
    """
    return sum(values.values()) / len(values)


def evaluate(options: EvalOptions) -> EvalResult:
    """Measure an index or a run, and the baseline if one is named."""
    from citadel.eval import DEFAULT_MEASURES, evaluate_queries

    names = options.measures.split() or list(DEFAULT_MEASURES)
    depth = _depth(names)
    dataset = _dataset(options)
    ranking = _usable_run(options.run, dataset) if options.run else _search(options, dataset, depth)
    values = evaluate_queries(ranking, dataset.qrels, names, dataset.relevant)
    if not options.baseline:
        return EvalResult(dataset, ranking, values)
    other = _usable_run(options.baseline, dataset)
    return EvalResult(
        dataset, ranking, values, evaluate_queries(other, dataset.qrels, names, dataset.relevant)
    )


def _dataset(options: EvalOptions) -> Dataset:
    """Read queries and judgements from --dataset, or from --queries and --qrels."""
    from citadel.eval import open_dataset

    if options.dataset:
        if options.queries or options.qrels:
            raise UsageError("--dataset names queries and judgements itself: leave --queries and --qrels out")
        dataset = open_dataset(options.dataset, options.split)
    else:
        dataset = _from_files(options)
    relevant = dataset.relevant if options.relevant is None else options.relevant
    drop = dataset.drop_same_id if options.drop_same_id is None else options.drop_same_id
    return replace(dataset, relevant=relevant, drop_same_id=drop)


def _from_files(options: EvalOptions) -> Dataset:
    from citadel.eval.datasets import SPLIT, Dataset, documents_of, has_query_documents, qrels_file
    from citadel.eval.runs import read_qrels
    from citadel.text.queries import read_queries

    if not options.qrels:
        raise UsageError("judgements are missing: name a file with --qrels, or a collection with --dataset")
    if bool(options.queries) == bool(options.run):
        raise UsageError("--queries goes with an INDEX, and an INDEX needs --queries")
    split = options.split or SPLIT
    qrels = read_qrels(qrels_file(options.qrels, split) if os.path.isdir(options.qrels) else options.qrels)
    queries = dict(read_queries(options.queries)) if options.queries else {}
    folder = os.path.basename(os.path.abspath(options.queries or options.qrels))
    return Dataset(folder, queries, qrels, lambda: documents_of(options.queries), has_query_documents(folder))


def _depth(names: list[str]) -> int:
    from citadel.eval.measures import parse_measure

    return max(DEPTH, *(int(parse_measure(name).params.get("cutoff", 0)) for name in names))


def _usable_run(file: str, dataset: Dataset) -> Ranking:
    """Read a run and apply the dataset's same-id rule; refuse a run of another collection."""
    from citadel.eval import drop_same_id, read_run

    ranking = read_run(file)
    missing = len(dataset.qrels.keys() - set(ranking.query_ids))
    if missing == len(dataset.qrels):
        raise InputError(
            "none of the judged queries is in this run: name a run of the judged collection", file
        )
    if missing:
        say(f"{plural(missing, 'judged query', 'judged queries')} not in {file}: counted as 0")
    return drop_same_id(ranking) if dataset.drop_same_id else ranking


def _search(options: EvalOptions, dataset: Dataset, depth: int) -> Ranking:
    from citadel.api import Index
    from citadel.cli.support.batch_search import check_trec_run, search_texts, to_ranking
    from citadel.eval import drop_same_id

    queries = dataset.judged
    if missing := len(dataset.qrels) - len(queries):
        where = options.queries or options.dataset
        say(f"{plural(missing, 'judged query', 'judged queries')} not in {where}: counted as 0")
    with Index.open(
        options.index or "", model=options.model, query_model=options.query_model, threads=options.threads
    ) as opened:
        _check_same_collection(opened, dataset, options.index or "")
        searcher = opened.searcher(
            **options.mode.options(),
            threads=options.threads,
            device=options.device,
            gpu_memory=options.gpu_memory,
        )
        if options.writes_run:
            check_trec_run(searcher, [id for id, _ in queries])
        ranking = to_ranking(search_texts(searcher, queries, depth + dataset.drop_same_id))
    return drop_same_id(ranking, depth) if dataset.drop_same_id else ranking


def _check_same_collection(index: Index, dataset: Dataset, path: str) -> None:
    """Refuse an index that holds none of the judged documents: every measure would be 0."""
    snapshot = index.searcher().snapshot
    ids = list(dict.fromkeys(id for grades in dataset.qrels.values() for id in grades))
    lookups = (ids[start : start + IDS_PER_LOOKUP] for start in range(0, len(ids), IDS_PER_LOOKUP))
    if not any(snapshot.locate(part) for part in lookups):
        judged = (
            "the judged document is not" if len(ids) == 1 else f"none of the {len(ids):,} judged documents is"
        )
        raise InputError(f"{judged} in this index: name the index of the judged collection", path)


def save(result: EvalResult, run: str, qrels: str, queries: str) -> None:
    """Write run, judgements and values per query to the named files."""
    from citadel.eval import write_qrels, write_run
    from citadel.files import write_whole

    if run:
        write_run(run, result.ranking)
    if qrels:
        write_qrels(qrels, result.dataset.qrels)
    if queries:
        write_whole(queries, [json.dumps({"measures": result.values}) + "\n"])


def print_values(result: EvalResult, as_json: bool, per_query: bool) -> None:
    """Print the means, one per line, or everything as JSON."""
    if as_json:
        print_json(_record(result, per_query))
        return
    for name, values in result.values.items():
        for query, value in values.items() if per_query else ():
            print(f"{name} {one_line(query)} {value:.4f}")
        print(f"{name} {mean(values):.4f}{_against(result, name)}")


def _against(result: EvalResult, name: str) -> str:
    compared = result.compared(name)
    if compared is None or result.baseline is None:
        return ""
    change = f"{compared.difference:+.4f} [{compared.low:+.4f}, {compared.high:+.4f}]"
    return f"  baseline {mean(result.baseline[name]):.4f}  {change}  p {compared.p:.4f}"


def _record(result: EvalResult, per_query: bool) -> dict[str, object]:
    record: dict[str, object] = {"measures": result.means, "judged": len(result.dataset.qrels)}
    if result.baseline is not None:
        compared = {name: result.compared(name) for name in result.values}
        record["baseline"] = {
            name: {"mean": mean(result.baseline[name]), **_finite(asdict(one))}
            for name, one in compared.items()
            if one
        }
    return record | ({"queries": result.values} if per_query else {})


def _finite(figures: dict[str, float]) -> dict[str, float | None]:
    """Replace infinity, which JSON lacks, by None: t is infinite if all queries differ by the same amount."""
    return {name: value if abs(value) < float("inf") else None for name, value in figures.items()}
