"""`citadel eval`: measure an index or a run against judgements, and compare it with a baseline run."""

from __future__ import annotations

from typing import Annotated

import typer

from citadel.cli.support.options import (
    Device,
    FusionMethod,
    GpuMemory,
    Json,
    Mode,
    Model,
    QueryModel,
    Threads,
    Weights,
    parse_gpu_memory,
    parse_mode,
)
from citadel.cli.support.run_eval import EvalOptions, print_values, save
from citadel.cli.support.run_eval import evaluate as run_evaluation
from citadel.errors import UsageError

EvaluatedIndex = Annotated[
    str | None, typer.Argument(metavar="[INDEX]", help="The index folder; not with --run.")
]
Queries = Annotated[str, typer.Option(metavar="FILE", help="Queries: JSONL, TSV or a BEIR folder.")]
Qrels = Annotated[str, typer.Option(metavar="FILE", help="Judgements: TREC, BEIR, or a BEIR folder.")]
DatasetName = Annotated[
    str,
    typer.Option(
        metavar="DIR|ID", help="Queries and judgements: a BEIR or MS MARCO folder, or ir_datasets:ID."
    ),
]
Split = Annotated[str, typer.Option(metavar="NAME", help="test, dev, …; MS MARCO: dev-small, dl19, dl20.")]
Measures = Annotated[
    str,
    typer.Option(
        metavar="NAMES", help="Names of ir-measures, separated by spaces.  [default: nDCG@10 RR@10 R@1000]"
    ),
]
Run = Annotated[str, typer.Option(metavar="RUN", help="A TREC run to measure instead of an index.")]
Baseline = Annotated[str, typer.Option(metavar="RUN", help="A TREC run to compare with, query by query.")]
PerQuery = Annotated[bool, typer.Option("--per-query", help="Also print each judged query's values.")]
SaveRun = Annotated[str, typer.Option(metavar="FILE", help="Write the run; .gz and .xz are compressed.")]
SaveQrels = Annotated[str, typer.Option(metavar="FILE", help="Write the judgements as TREC qrels.")]
SaveQueries = Annotated[str, typer.Option(metavar="FILE", help="Write each query's values as JSON.")]
LowestGrade = Annotated[
    int | None,
    typer.Option(metavar="GRADE", min=1, help="Lowest grade that recall, RR and AP count as relevant."),
]
DropSameId = Annotated[
    bool | None,
    typer.Option(
        "--drop-same-id/--keep-same-id",
        help="Drop hits whose id equals the query's; default for arguana, quora.",
    ),
]


def evaluate(
    index: EvaluatedIndex = None,
    queries: Queries = "",
    qrels: Qrels = "",
    dataset: DatasetName = "",
    split: Split = "",
    measures: Measures = "",
    run: Run = "",
    baseline: Baseline = "",
    json: Json = False,
    per_query: PerQuery = False,
    save_run: SaveRun = "",
    save_qrels: SaveQrels = "",
    save_queries: SaveQueries = "",
    relevant: LowestGrade = None,
    drop_same_id: DropSameId = None,
    mode: Mode = "model",
    fusion: FusionMethod = None,
    weights: Weights = None,
    model: Model = None,
    query_model: QueryModel = None,
    threads: Threads = None,
    device: Device = "cpu",
    gpu_memory: GpuMemory = "",
) -> None:
    """Measure an index or a run over the judged queries; a query without hits scores 0.

    --baseline adds the difference, a two-sided paired t-test and a 95 % bootstrap interval."""
    if (index is None) == (not run):
        raise UsageError("name either an INDEX or a run with --run")
    options = EvalOptions(
        index, queries, qrels, dataset, split, measures, run, baseline, relevant, drop_same_id, model,
        threads, device, parse_gpu_memory(gpu_memory), bool(save_run), query_model,
        parse_mode(mode, fusion, weights),
    )  # fmt: skip
    result = run_evaluation(options)
    save(result, save_run, save_qrels, save_queries)
    print_values(result, json, per_query)
