"""PyTerrier: `CitadelIndexer` and `CitadelRetriever`, without Java."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from citadel.api import Index
from citadel.errors import InputError, UsageError
from citadel.integrations import MissingPackageError
from citadel.integrations.store import AnyIndex, Store
from citadel.types import Hit

try:
    import pandas as pd
    import pyterrier as pt
except ImportError as error:
    raise MissingPackageError("pyterrier", error) from None

_RANKED = ("docno", "score", "rank")


class CitadelIndexer(pt.Indexer):
    """Indexes documents with `docno`, `text` and perhaps `title`; other fields become metadata.

    `path` is a folder; an index that is there is kept, and documents with known ids are replaced, unless
    `overwrite` is true. `options` are those of `Index.create`.

    >>> import tempfile
    >>> index = CitadelIndexer(tempfile.mkdtemp(), model="bm25").index([{"docno": "d1", "text": "E = mc²"}])
    >>> CitadelRetriever(index).search("mc²")[["docno", "rank"]].values.tolist()
    [['d1', 0]]
    """

    def __init__(self, path: str, *, overwrite: bool = False, verbose: bool = False, **options: Any) -> None:
        self.path, self.overwrite, self.verbose, self.options = path, overwrite, verbose, options

    def __repr__(self) -> str:
        return f"CitadelIndexer({self.path!r})"

    def index(self, iter: Iterable[Mapping[str, Any]], **kwargs: Any) -> Index:
        """Index documents and return the index; nothing is kept if a document cannot be indexed."""
        if self.overwrite:
            index = Index.create(self.path, overwrite=True, **self.options)
        else:
            index = Index.open_or_create(self.path, **self.options)
        try:
            index.add(map(_stored, iter), progress=self.verbose)
            index.commit()
        finally:
            index.rollback()  # after a commit it only releases the lock
        return index

    def index_inputs(self) -> list[list[str]]:
        """The columns that documents must have."""
        return [["docno", "text"]]

    def schematic(self, *, input_columns: list[str] | None = None) -> dict[str, Any]:
        """The box in drawings of pipelines."""
        return _box(self, path=self.path, **self.options)


class CitadelRetriever(pt.Transformer):
    """Adds the best documents for each query: `docno`, `score` and `rank`.

    `metadata` names further columns: `text`, `title` or a metadata field of the documents. `options` are
    those of `Searcher.search`, such as `filter` or `semantic_mode`.

    >>> import citadel, tempfile
    >>> index = citadel.Index.create(tempfile.mkdtemp(), model="bm25")
    >>> added = index.add([{"id": "d1", "text": "E = mc²", "year": 1905}])
    >>> retriever = CitadelRetriever(index.commit(), metadata=["year"]) % 10
    >>> retriever.search("mc²")[["docno", "year"]].values.tolist()
    [['d1', 1905]]
    """

    def __init__(
        self, index: AnyIndex, *, k: int = 1000, metadata: Sequence[str] = (), **options: Any
    ) -> None:
        if taken := {"qid", "query", *_RANKED} & set(metadata):
            raise UsageError(f"the column {min(taken)!r} is the retriever's own: leave it out of metadata")
        self.index = Store(index, create=False).index
        self.k, self.metadata, self.options = k, tuple(metadata), options

    def __repr__(self) -> str:
        return f"CitadelRetriever({self.index!r}, k={self.k})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Search the queries of a frame with `qid` and `query`; other columns are kept."""
        pt.validate.query_frame(inp, extra_columns=["query"], context=self)
        columns = [*(name for name in inp.columns if name not in (*_RANKED, *self.metadata)), *_RANKED]
        texts = [(str(position), text) for position, text in enumerate(inp["query"])]
        ranking = self.index.refresh().searcher().search_batch(texts, self.k, **self.options)
        rows, positions = _Rows(self.metadata), []
        for position, hits in enumerate(ranking.hits):
            rows.add(hits)
            positions += [position] * len(hits)
        found = inp.iloc[positions].reset_index(drop=True)
        return found.assign(**rows.columns)[[*columns, *self.metadata]]

    def fuse_rank_cutoff(self, k: int) -> CitadelRetriever:
        """A retriever of at most k documents, for `retriever % k`."""
        if k >= self.k:
            return self
        return CitadelRetriever(self.index, k=k, metadata=self.metadata, **self.options)

    def schematic(self, *, input_columns: list[str] | None = None) -> dict[str, Any]:
        """The box in drawings of pipelines."""
        return _box(self, k=self.k, metadata=list(self.metadata), **self.options)

    def subtransformers(self) -> dict[str, pt.Transformer]:
        """None: PyTerrier would take an empty `metadata` for a list of them."""
        return {}


def _box(transformer: pt.Transformer, **settings: Any) -> dict[str, Any]:
    # Without help_url PyTerrier would download the index of its documentation.
    return {"label": type(transformer).__name__, "settings": settings, "help_url": None}


class _Rows:
    """The columns that a retriever adds."""

    def __init__(self, metadata: Sequence[str]) -> None:
        self._read = {name: _reader(name) for name in metadata}
        self.columns: dict[str, list[Any]] = {name: [] for name in (*_RANKED, *metadata)}

    def add(self, hits: Sequence[Hit]) -> None:
        """Append the hits of one query; ranks begin at 0, as everywhere in PyTerrier."""
        for rank, hit in enumerate(hits):
            for name, value in zip(_RANKED, (hit.id, hit.score, rank), strict=True):
                self.columns[name].append(value)
            for name, read in self._read.items():
                self.columns[name].append(read(hit))


def _reader(name: str) -> Callable[[Hit], Any]:
    if name == "text":
        return lambda hit: hit.text
    if name == "title":
        return lambda hit: hit.title
    return lambda hit: hit.metadata.get(name)


def _stored(document: Mapping[str, Any]) -> dict[str, Any]:
    if "docno" not in document:
        raise InputError("a document without docno: give each a docno and a text")
    return {"id": document["docno"], **{name: value for name, value in document.items() if name != "docno"}}
