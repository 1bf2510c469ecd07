"""Test collections of the ir_datasets package, such as beir/scifact/test (extra [datasets])."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from citadel.errors import InputError, UsageError
from citadel.eval.datasets import SAME_ID, Dataset
from citadel.eval.runs import Qrels
from citadel.types import Document

PREFIX = "ir_datasets:"
_OWN_IDS = ("doc_id", "query_id")
DL = ("trec-dl-2019", "trec-dl-2020")


def irds_dataset(name: str) -> Dataset:
    """Open the collection with this ir_datasets id."""
    collection = _load(name)
    parts = set(name.lower().split("/"))
    return Dataset(
        name.replace("/", "-"),
        _reading(name, lambda: {str(query.query_id): _text(query) for query in collection.queries_iter()}),
        _reading(name, lambda: _qrels(collection)),
        lambda: _documents(name, collection),
        bool(parts & set(SAME_ID)),
        2 if "msmarco-passage" in parts and any(part.startswith(DL) for part in parts) else 1,
    )


def _load(name: str) -> Any:
    try:
        import ir_datasets
    except ImportError:
        raise UsageError(
            f"{PREFIX}{name} needs the package ir_datasets: run `pip install 'citadel-ir[datasets]'`"
        ) from None
    try:
        collection = ir_datasets.load(name)
    except KeyError:
        raise InputError("unknown ir_datasets id: see https://ir-datasets.com for the list", name) from None
    for part in ("docs", "queries", "qrels"):
        if not getattr(collection, f"has_{part}")():
            raise InputError(f"this id has no {part}: name one with documents, queries and qrels", name)
    return collection


def _reading(name: str, read: Callable[[], Any]) -> Any:
    """Call `read`, which may download files, and turn any failure into an InputError."""
    try:
        return read()
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        advice = "check the network, or name a folder with its files"
        raise InputError(f"ir_datasets cannot provide it ({reason}): {advice}", name) from None


def _documents(name: str, collection: Any) -> Iterator[Document]:
    documents = _reading(name, lambda: iter(collection.docs_iter()))
    while (record := _reading(name, lambda: next(documents, None))) is not None:
        title = getattr(record, "title", "") or ""
        yield Document(str(record.doc_id), _text(record, without=title), title)


def _text(record: Any, without: str = "") -> str:
    """Text of a document or query: its `text` field, else its other text fields joined."""
    if isinstance(text := getattr(record, "text", None), str):
        return text
    if "title" in record._fields and not without:
        return str(record.title)  # in TREC topics the title is the query
    parts = [getattr(record, name) for name in record._fields if name not in (*_OWN_IDS, "title")]
    return " ".join(part for part in parts if isinstance(part, str))


def _qrels(collection: Any) -> Qrels:
    qrels: Qrels = {}
    for judgement in collection.qrels_iter():
        qrels.setdefault(str(judgement.query_id), {})[str(judgement.doc_id)] = int(judgement.relevance)
    return qrels
