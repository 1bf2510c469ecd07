"""Rankings against judgements: run and qrels files, and the measures of TREC."""

from citadel.eval.measures import DEFAULT_MEASURES, evaluate, evaluate_queries
from citadel.eval.runs import read_qrels, read_run, write_run

__all__ = ["DEFAULT_MEASURES", "evaluate", "evaluate_queries", "read_qrels", "read_run", "write_run"]
