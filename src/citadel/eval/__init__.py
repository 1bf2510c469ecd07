"""Evaluation: run and qrels files, test collections, TREC measures, significance tests."""

from citadel.eval.datasets import Dataset, drop_same_id
from citadel.eval.measures import DEFAULT_MEASURES, evaluate, evaluate_queries
from citadel.eval.registry import open_dataset
from citadel.eval.runs import read_qrels, read_run, write_qrels, write_run
from citadel.eval.significance import Comparison, compare

__all__ = [
    "DEFAULT_MEASURES",
    "Comparison",
    "Dataset",
    "compare",
    "drop_same_id",
    "evaluate",
    "evaluate_queries",
    "open_dataset",
    "read_qrels",
    "read_run",
    "write_qrels",
    "write_run",
]
