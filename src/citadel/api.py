"""`Index`, the public class of the library: create, open, add, delete, commit, merge, check, search."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from citadel.encode.batches import encoded_batches
from citadel.encode.config import load_config
from citadel.encode.locate import require_space, space_of
from citadel.errors import (
    FilterError,
    IndexNotFoundError,
    InputError,
    OwnershipError,
    TruncatedDocumentsWarning,
    UncommittedChangesWarning,
    UsageError,
)
from citadel.filter.parse import GivenFilter, given_filter
from citadel.filter.tree import And, Compare, Filter, Not, Or, comparisons
from citadel.forks import no_fork
from citadel.index.backup import backup
from citadel.index.changes import check_added, count_documents
from citadel.index.create import NewIndexOptions, create_index, new_index_settings
from citadel.index.folder_lock import fork_message
from citadel.index.manifest import Build
from citadel.index.sharded import ShardedSnapshot, open_newest
from citadel.index.snapshot import Snapshot
from citadel.index.storage import AnyPath, Storage, as_storage
from citadel.index.vectors import batches
from citadel.index.word_snapshot import WordSnapshot
from citadel.index.writer import Writer
from citadel.index_reader import IndexReader
from citadel.progress import document_progress
from citadel.search.async_search import run_cancellable
from citadel.search.engine import EngineOpener
from citadel.search.hits import Hits
from citadel.search.index_hybrid import CANDIDATES, DEFAULT_METHOD, DEFAULT_WEIGHTS, MODES, IndexHybrid
from citadel.search.searcher import QueryEncoder, Searcher
from citadel.settings import DEFAULT_MEMORY, GRAPH_FLOOR, EncodeOn, Field
from citadel.text.new_ids import NewIds
from citadel.text.parse import AnyId, known_ids
from citadel.types import AddedCount, Document, VectorBatch

if TYPE_CHECKING:
    from citadel._native import Cancel
    from citadel.encode.encoder import Encoder

_CPU = EncodeOn()


class Index(IndexReader):
    """An index in a folder. Changes become visible to searchers with `commit`.

    Threads may share an Index. A forked child can search, but must open its own Index to make changes.

    >>> import tempfile
    >>> with Index.create(tempfile.mkdtemp()) as index:
    ...     added = index.add([{"id": "d1", "text": "E = mc²", "year": 1905}])
    ...     hits = index.commit().searcher().search("mc²")
    >>> hits[0].id, hits[0].metadata["year"]
    ('d1', 1905)
    """

    def __init__(
        self,
        storage: Storage,
        memory: int = DEFAULT_MEMORY,
        model: AnyPath | None = None,
        threads: int | None = None,
        encoder: Encoder | None = None,
        query_model: AnyPath | None = None,
    ) -> None:
        if isinstance(storage, str | os.PathLike):
            raise UsageError(f"Index({str(storage)!r}): use Index.open or Index.create")
        self._process = os.getpid()
        self._view: Snapshot | Writer = open_newest(storage)  # a Writer after the first change
        super().__init__(storage, memory, model, threads, encoder, query_model)
        self._closed = False
        self._newest: tuple[Any, dict[str, Searcher | IndexHybrid]] | None = None  # of `search`, by mode
        self._document_encoder: tuple[EncodeOn, Callable[..., Iterator[VectorBatch]]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path; the copy opens the newest generation."""
        if self.has_changes:
            raise UsageError(f"{self._storage.location}: changes cannot be pickled; commit them first")
        given = (self._storage, self._memory, self._model, self._threads, self._query_model)
        return _restore_index, given

    @classmethod
    def create(
        cls,
        path: AnyPath | Storage,
        *,
        model: AnyPath | None = None,
        router: str | None = None,
        fields: Mapping[str, Field | Mapping[str, Any] | int] | None = None,
        fingerprint: str | None = None,
        tau: float | None = None,
        codec: str | None = None,
        semantic_codec: str | None = None,
        analyser: str | None = None,
        k1: float | None = None,
        b: float | None = None,
        long: str | None = None,
        chunk_tokens: int | None = None,
        chunk_overlap: int | None = None,
        hybrid: bool = False,
        memory: int = DEFAULT_MEMORY,
        threads: int | None = None,
        overwrite: bool = False,
        build: Build | None = None,
        graph: bool = True,
    ) -> Self:
        """Create an empty index, for text or, with `fields`, for given vectors.

        Text is encoded by `model`, a folder made by `citadel export`; the default is the model installed with
        the package. `tau` (default: the model's) and the codecs of its token and semantic vectors (`int8`)
        are optional. `model="bm25"`, or an `analyser` (`english`), `k1` (0.9) or `b` (0.4), selects BM25.
        `hybrid=True` keeps BM25 lists beside those of a model, for searches with `mode="hybrid"` or
        `mode="bm25"`; `analyser`, `k1` and `b` are then theirs.

        `long` decides what becomes of texts longer than the model reads: "chunk" (the default) splits them
        into passages of at most `chunk_tokens` tokens (256) with `chunk_overlap` in common (32), and a hit is
        still the whole document; "cut" reads their beginning only, with a warning; "fail" refuses them.

        `fields` has a `lexical` field, a `semantic` field or both, each a dimension or a `Field`. Such an
        index needs a `fingerprint` that identifies the model that made the vectors.

        Commits and merges build graphs of large segments, for faster searches, unless `graph` is false.
        """
        options = NewIndexOptions(
            model=model,
            router=router,
            fields=fields,
            fingerprint=fingerprint,
            tau=tau,
            codec=codec,
            semantic_codec=semantic_codec,
            analyser=analyser,
            k1=k1,
            b=b,
            threads=threads,
            long=long,
            chunk_tokens=chunk_tokens,
            chunk_overlap=chunk_overlap,
            hybrid=hybrid,
        )
        settings, named, encoder = new_index_settings(options)
        storage = as_storage(path)
        create_index(storage, settings, overwrite, build, graph)
        return cls(storage, memory, named, threads, encoder)

    @classmethod
    def open(
        cls,
        path: AnyPath | Storage,
        *,
        memory: int = DEFAULT_MEMORY,
        model: AnyPath | None = None,
        threads: int | None = None,
        query_model: AnyPath | None = None,
    ) -> Self:
        """Open the newest generation of an index; `model` is its model's folder if not installed.

        `query_model` encodes queries instead, a smaller model of the same space: the name of an installed
        one, or a folder.
        """
        return cls(as_storage(path), memory, model, threads, query_model=query_model)

    @classmethod
    def open_or_create(cls, path: AnyPath | Storage, **options: Any) -> Self:
        """Open the index in a folder, or create it there with the options of `create`.

        An existing index keeps its settings: only `memory`, `model` and `threads` apply to it. It is never
        overwritten.

        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> len(Index.open_or_create(folder, model="bm25")), len(Index.open_or_create(folder, model="bm25"))
        (0, 0)
        """
        inspect.signature(cls.create).bind(path, **options)  # TypeError for a misspelt option
        if options.get("overwrite"):
            raise UsageError(
                "open_or_create keeps an existing index: use create(…, overwrite=True) to replace it"
            )
        storage = as_storage(path)
        try:
            opened = {name: options[name] for name in ("memory", "threads") if name in options}
            model = options.get("model")
            return cls.open(storage, model=None if model == "bm25" else model, **opened)
        except IndexNotFoundError:
            return cls.create(storage, **options)

    # -- changes

    def add(
        self,
        documents: Iterable[Document | Mapping[str, Any]],
        *,
        progress: bool | Callable[[int], None] = False,
        device: str = "cpu",
        precision: str = "bf16",
    ) -> AddedCount:
        """Add documents from a list or a stream and return their number; known ids are replaced.

        A document without `id` gets one; the number's `generated_ids` lists these ids in order. Ids and
        metadata may be UUIDs, dates and numpy values, which are stored as strings and numbers.

        An invalid document raises InputError; those before it are kept for `commit` or `rollback`. Any other
        exception drops the documents of this call only. Texts longer than the model reads are split into
        passages, unless the index was created with `long="cut"`: then they are truncated, with one
        `TruncatedDocumentsWarning` per call. `progress=True` shows a progress bar on a terminal; a
        function is called with the number of documents encoded or indexed so far.

        `device="cuda"` encodes on a GPU, `"cuda:0,cuda:1"` on two, in the `precision` bf16 or fp32; a thread
        reads the stream.

        >>> import tempfile
        >>> index = Index.create(tempfile.mkdtemp(), model="bm25")
        >>> added = index.add([{"id": "d1", "text": "E = mc²"}, {"text": "F = ma"}])
        >>> added, index.commit().get(added.generated_ids[0]).text
        (2, 'F = ma')
        """
        self._require_open()
        if isinstance(documents, (str, bytes, Mapping, Document)) or not isinstance(documents, Iterable):
            raise UsageError("add takes an iterable of documents: put a single one into a list")
        total = len(documents) if isinstance(documents, Sized) else None
        new_ids = NewIds()
        with document_progress(progress, "Adding", total) as advance:
            checked = (check_added(item, new_ids) for item in documents)
            added, truncated = self._add(checked, advance, EncodeOn(device, precision))
        if truncated:
            warnings.warn(
                truncation_message(truncated, self.max_tokens), TruncatedDocumentsWarning, stacklevel=2
            )
        return AddedCount(added, truncated, self.max_tokens, new_ids.made)

    def add_checked(
        self,
        documents: Iterable[Document],
        advance: Callable[[int], Any] | None = None,
        encode_on: EncodeOn = _CPU,
    ) -> tuple[int, int]:
        """Like `add`, without checks and warnings, for documents from `read_corpus` or `make_document`.

        Returns the number added and the number that were cut. `advance` is called with the number of
        documents encoded or indexed since the last call.
        """
        self._require_open()
        return self._add(documents, advance, encode_on)

    def _add(
        self, documents: Iterable[Document], advance: Callable[[int], Any] | None, encode_on: EncodeOn
    ) -> tuple[int, int]:
        """Add checked documents; return the numbers added and truncated."""
        if encode_on.is_gpu and self.settings.model is None:
            raise UsageError(f"this index has no model, so device={encode_on.device!r} is of no use")
        if self.settings.model is None:
            return self._writer.add(documents if advance is None else count_documents(documents, advance)), 0
        counts: Counter[str] = Counter()

        def count(name: str, number: int) -> None:
            counts[name] += number
            self.tally(name, number)

        long = self.settings.long
        if encode_on.is_gpu:
            batches = self._encoded_on(encode_on)(documents, self._memory, count, advance, long)
        else:
            batches = encoded_batches(documents, self._encode(), self._memory, count, advance, long)
        return self._writer.add_vectors(batches), counts["cut"]

    def add_vectors(self, given: Any, *, fingerprint: str | None = None) -> AddedCount:
        """Add documents with given vectors and return their number.

        `given` is an iterable of mappings (`id`, `keys`, `weights`, `vectors`, `semantic`, `text`, …), one
        mapping of arrays for many documents (`ids`, `offsets`, …), the path of an `.npz` file with such
        arrays, or a `VectorBatch`. A mapping without `id` gets one, as in `add`.

        >>> import tempfile
        >>> index = Index.create(tempfile.mkdtemp(), fields={"semantic": 2}, fingerprint="my-model")
        >>> index.add_vectors([{"id": "d1", "semantic": [0.0, 1.0], "year": 1905}])
        1
        """
        self._require_open()
        settings = self.settings
        if settings.router == "bm25":
            raise UsageError(
                "this index holds text: create an index for vectors with fields=… or from an .npz"
            )
        if fingerprint is not None and fingerprint != settings.fingerprint:
            raise InputError(
                f"vectors of {fingerprint!r} cannot be added to an index of {settings.fingerprint!r}"
            )
        new_ids = NewIds()
        added = self._writer.add_vectors(
            [given] if isinstance(given, VectorBatch) else batches(given, settings, self._memory, new_ids)
        )
        return AddedCount(added, generated_ids=new_ids.made)

    def delete(self, ids: AnyId | Iterable[AnyId] | None = None, *, filter: GivenFilter | None = None) -> int:
        """Delete documents by id, or committed documents by a filter, and return their number.

        Unknown ids are ignored. A filter without conditions, `{}`, would delete everything and is refused.

        >>> import tempfile
        >>> index = Index.create(tempfile.mkdtemp(), model="bm25")
        >>> years = range(1904, 1908)
        >>> added = index.add({"id": f"d{year}", "text": "E = mc²", "year": year} for year in years)
        >>> index.commit().delete(["d1904", "d9"]), index.delete(filter={"year": {"$gt": 1905}})
        (1, 2)
        >>> list(index.commit().ids())
        ['d1905']
        """
        self._require_open()
        if (ids is None) == (filter is None):
            raise UsageError("delete takes either ids or a filter")
        if filter is not None:
            return self._writer.delete_matching(_conditions(filter))
        return self._writer.delete(known_ids(ids))

    def update_metadata(
        self, which: AnyId | Iterable[AnyId] | Mapping[str, Any] | Filter, values: Mapping[str, Any]
    ) -> int:
        """Change metadata of committed documents by id, ids or filter, and return their number.

        Named fields change, None removes a field, others stay. Texts are not encoded again. This is a commit
        of its own, so there must be no uncommitted changes.

        >>> import tempfile
        >>> index = Index.create(tempfile.mkdtemp(), model="bm25")
        >>> added = index.add([{"id": "d1", "text": "E = mc²", "year": 1904}])
        >>> index.commit().update_metadata("d1", {"year": 1905})
        1
        >>> index.get("d1").metadata
        {'year': 1905}
        """
        self._require_open()
        if not isinstance(values, Mapping):
            raise UsageError(f"update_metadata takes a mapping of fields, not {type(values).__name__}")
        if own := [name for name in ("id", "_id", "title", "text") if name in values]:
            raise UsageError(f"update_metadata cannot change the {own[0]}: add the document again")
        if isinstance(which, Mapping | And | Or | Not | Compare):
            return self._writer.update_metadata(_conditions(which), values)
        return self._writer.update_metadata(known_ids(which), values)

    def commit(self, build: Build | None = None, *, graph: bool | None = None) -> Self:
        """Make all changes durable and visible; when this returns they survive a power loss.

        A large new segment gets a graph for the semantic mode `graph`. `graph=False` builds none, also in
        later commits and merges; `graph=True` builds them again."""
        self._require_open()
        if build is not None or graph is not None or isinstance(self._view, Writer):
            with self._graphs(graph):
                self._writer.commit(build)
        return self

    def merge(self, *, retrain: bool = False, graph: bool | None = None) -> Self:
        """Merge all segments into one, without deleted documents; `retrain` trains a new codebook.

        A large segment gets a graph for the semantic mode `graph`, unless an earlier `commit` or `merge`
        had `graph=False`."""
        self._require_open()
        with self._graphs(graph):
            self._writer.merge(retrain)
        return self

    def optimize(
        self,
        *,
        min_documents: int = GRAPH_FLOOR,
        progress: Callable[[str, int], Any] | None = None,
        cancel: Cancel | None = None,
    ) -> int:
        """Commit, then build the graphs that segments of at least `min_documents` lack; return their number.

        `progress` is called with the name of a segment and the number of its documents done. Interrupted?
        Call it again: finished graphs are kept.

        >>> import tempfile
        >>> with Index.create(tempfile.mkdtemp(), fields={"semantic": 2}, fingerprint="by hand") as index:
        ...     added = index.add_vectors([{"id": "d1", "semantic": [1, 0]}])
        ...     index.optimize(min_documents=1)
        1
        """
        self._require_open()
        return self._writer.optimize(min_documents, progress, cancel)

    @contextlib.contextmanager
    def _graphs(self, build: bool | None) -> Iterator[None]:
        """Remember with the commit in this context whether to build graphs; None: no change."""
        before, self._writer.builds_graphs = self._writer.builds_graphs, build
        try:
            yield
        finally:
            self._writer.builds_graphs = before

    def merge_space(self, *, retrain: bool = False) -> int:
        """Bytes of disk space that `merge` may need; 0 if there is nothing to merge."""
        return self._writer.merge_space(retrain)

    def rollback(self) -> None:
        """Drop all uncommitted changes."""
        if isinstance(self._view, Writer):
            self._view.rollback()

    @property
    def has_changes(self) -> bool:
        """Whether there are uncommitted changes."""
        return isinstance(self._view, Writer) and self._view.changed

    @property
    def _writer(self) -> Writer:
        """The writer of this index, created at the first change."""
        if isinstance(view := self._view, Writer):
            return view
        if isinstance(view, ShardedSnapshot):
            raise UsageError(
                f"{self._storage.location}: a sharded index cannot be changed in place; change the original "
                "and run `citadel shard` again"
            )
        with no_fork, self._loading:
            if not isinstance(self._view, Writer):
                if os.getpid() != self._process:
                    raise OwnershipError(fork_message(self._storage.location))
                self._view = Writer(self._storage, self._memory, self._view)
            return self._view

    # -- copies

    def backup(self, path: AnyPath, *, links: bool = True) -> int:
        """Copy the newest committed generation into a new folder, and return its number.

        Writers may go on meanwhile. The copy is an index of its own; every byte of it is read before the
        folder gets its name. Files are hard links where possible, which takes no space but shares the disk's
        blocks: use `links=False` for a copy of its own on the same disk.

        >>> import tempfile
        >>> index = Index.create(tempfile.mkdtemp(), model="bm25")
        >>> added = index.add([{"id": "d1", "text": "E = mc²"}])
        >>> generation = index.commit().backup(tempfile.mkdtemp() + "/backup")
        """
        return backup(self._storage, path, links=links).manifest.generation

    @classmethod
    def restore(cls, path: AnyPath, target: AnyPath, *, links: bool = True, **options: Any) -> Self:
        """Copy a backup into a new folder and open it there, with the options of `open`.

        >>> import tempfile
        >>> index, folder = Index.create(tempfile.mkdtemp(), model="bm25"), tempfile.mkdtemp()
        >>> generation = index.backup(folder + "/backup")
        >>> Index.restore(folder + "/backup", folder + "/restored").generation == generation
        True
        """
        backup(as_storage(path), target, links=links)
        return cls.open(target, **options)

    # -- reading

    def search(self, query: str, k: int = 10, *, mode: str = "model", **options: Any) -> Hits:
        """Search the newest committed generation, with the options of `Searcher.search`.

        `mode` is one of `searcher`.

        >>> import tempfile
        >>> index = Index.create(tempfile.mkdtemp(), model="bm25")
        >>> added = index.add({"id": f"d{n}", "text": "E = mc²", "n": n} for n in range(12))
        >>> index.commit().search("mc²", filter={"n": {"$lt": 2}}).ids
        ['d0', 'd1']
        >>> index.search("mc²", offset=10).ids, index.search("mc²", min_score=99.0).ids
        (['d10', 'd11'], [])
        """
        return self._newest_searcher(mode).search(query, k, **options)

    async def asearch(
        self, query: str, k: int = 10, *, mode: str = "model", cancel: Cancel | None = None, **options: Any
    ) -> Hits:
        """`search` in a worker thread, with texts and metadata; cancelling the task stops the search.

        >>> import asyncio, tempfile
        >>> index = Index.create(tempfile.mkdtemp(), model="bm25")
        >>> added = index.add([{"id": "d1", "text": "E = mc²"}])
        >>> asyncio.run(index.commit().asearch("mc²")).ids
        ['d1']
        """

        def work(flag: Cancel) -> Hits:
            hits = self.search(query, k, mode=mode, cancel=flag, **options)
            hits.load(flag)
            return hits

        return await run_cancellable(work, cancel)

    def _newest_searcher(self, mode: str) -> Searcher | IndexHybrid:
        """The searcher of a mode over the newest generation; kept until the next one."""
        self.refresh()
        snapshot = self._snapshot
        generation = (snapshot.settings.fingerprint, snapshot.manifest.generation, snapshot.manifest.index_id)
        newest = self._newest
        if newest is None or newest[0] != generation:
            self._newest = newest = (generation, {})
        if mode not in newest[1]:
            newest[1][mode] = self.searcher(mode=mode)
        return newest[1][mode]

    @overload
    def searcher(
        self,
        *,
        mode: Literal["model", "bm25"] = "model",
        threads: int | None = None,
        engine: str | EngineOpener = "native",
        device: str = "cpu",
        gpu_memory: int | None = None,
        card_memory: int | None = None,
    ) -> Searcher: ...
    @overload
    def searcher(
        self,
        *,
        mode: Literal["hybrid"],
        fusion: str = DEFAULT_METHOD,
        weights: Sequence[float] | None = DEFAULT_WEIGHTS,
        candidates: int = CANDIDATES,
        threads: int | None = None,
        engine: str | EngineOpener = "native",
        device: str = "cpu",
        gpu_memory: int | None = None,
        card_memory: int | None = None,
    ) -> IndexHybrid: ...
    @overload
    def searcher(
        self,
        *,
        mode: str,
        fusion: str = DEFAULT_METHOD,
        weights: Sequence[float] | None = DEFAULT_WEIGHTS,
        candidates: int = CANDIDATES,
        threads: int | None = None,
        engine: str | EngineOpener = "native",
        device: str = "cpu",
        gpu_memory: int | None = None,
        card_memory: int | None = None,
    ) -> Searcher | IndexHybrid: ...
    def searcher(
        self,
        *,
        mode: str = "model",
        fusion: str = DEFAULT_METHOD,
        weights: Sequence[float] | None = DEFAULT_WEIGHTS,
        candidates: int = CANDIDATES,
        threads: int | None = None,
        engine: str | EngineOpener = "native",
        device: str = "cpu",
        gpu_memory: int | None = None,
        card_memory: int | None = None,
    ) -> Searcher | IndexHybrid:
        """A searcher over the last committed generation; later commits do not change its results.

        `device="cuda"` copies the index to a GPU, searches there and encodes queries there. Lists beyond
        `gpu_memory` bytes stay in host memory (`card_memory` is its former name).

        An index created with `hybrid=True` has three modes: `model` searches the model's lists, `bm25` the
        BM25 lists, `hybrid` both, fused as by `citadel.fuse` with `weights` of model and BM25. Each gives its
        best `candidates` hits, at least `offset + k`.

        >>> import tempfile
        >>> index = Index.create(tempfile.mkdtemp(), model="default", hybrid=True)
        >>> added = index.add([{"id": "d1", "text": "E = mc²"}])
        >>> searcher = index.commit().searcher(mode="hybrid", fusion="rrf", weights=(1, 1))
        >>> [(part.name, part.rank) for part in searcher.search("mc²")[0].parts]
        [('model', 1), ('bm25', 1)]
        """
        if mode not in MODES:
            raise UsageError(f"unknown mode {mode!r}: choose one of {', '.join(MODES)}")
        memory = card_memory if gpu_memory is None else gpu_memory
        snapshot = self._snapshot
        own = (
            self._searcher(snapshot, threads, engine, device, memory)
            if mode != "bm25" or snapshot.settings.router == "bm25"
            else None
        )
        if own is not None and mode != "hybrid":
            return own
        on_cpu = engine if isinstance(engine, str) and device == "cpu" else "native"
        bm25 = _word_searcher(WordSnapshot(snapshot), threads, on_cpu)
        return bm25 if own is None else IndexHybrid(own, bm25, fusion, weights, candidates)

    def _searcher(
        self,
        snapshot: Snapshot,
        threads: int | None,
        engine: str | EngineOpener,
        device: str,
        gpu_memory: int | None,
    ) -> Searcher:
        encoder = self._encode_queries if self.settings.model else None
        on_device = functools.cache(lambda: self.encoder_on(device)) if encoder and device != "cpu" else None
        calibration = self._calibration if encoder and self.settings.semantic else None
        options = (threads, engine, encoder, device, on_device, gpu_memory)
        documents = self._encode if encoder else None
        searcher = Searcher(snapshot, *options, calibration=calibration, document_encoder=documents)
        searcher.recipe = (
            _restore_searcher,
            (
                *(self._memory, self._model, self._query_model, self._threads),
                *(threads, engine, device, gpu_memory),
            ),
        )
        return searcher

    def refresh(self) -> Self:
        """Move to the newest generation, unless this Index has uncommitted changes."""
        with no_fork, self._loading:
            if not isinstance(self._view, Writer):
                self._storage.reopen()
                self._view = open_newest(self._storage, self._view)
                return self
        self._writer.refresh()
        return self

    @property
    def _snapshot(self) -> Snapshot:
        view = self._view
        return view.snapshot if isinstance(view, Writer) else view

    def tally(self, name: str, number: int) -> None:
        """Increment a counter shown by `stats`, such as documents skipped."""
        self._writer.count(name, number)

    def _encoded_on(self, where: EncodeOn) -> Callable[..., Iterator[VectorBatch]]:
        """A function that encodes a stream of documents on GPUs; the model is loaded once."""
        with no_fork, self._loading:
            if self._document_encoder is None or self._document_encoder[0] != where:
                self._document_encoder = None  # frees the GPU's memory first
                self._document_encoder = (where, self._load_on(where))
            return self._document_encoder[1]

    def _load_on(self, where: EncodeOn) -> Callable[..., Iterator[VectorBatch]]:
        folder = self._find_model()
        require_space(load_config(folder), space_of(folder), self.settings, folder)
        try:
            from citadel.model.documents import document_batches, document_encoder

            encoder = document_encoder(folder, where, self.settings.tau)
        except ModuleNotFoundError as error:
            raise UsageError(
                f"--device {where.device} needs {error.name}: run `pip install 'citadel-ir[gpu]'`"
            ) from None
        return functools.partial(document_batches, encoder)

    def encoder_on(self, device: str) -> QueryEncoder:
        """Load the model for queries on a device."""
        from citadel.model.texts import query_encoder

        folder = self._query_folder()
        require_space(load_config(folder), space_of(folder), self.settings, folder)
        return query_encoder(folder, device)

    # -- closing

    def close(self) -> None:
        """Close for writing and drop uncommitted changes with a warning; searchers stay usable."""
        self._close(stacklevel=3)

    def _close(self, stacklevel: int) -> None:
        had_changes = self.has_changes
        self.rollback()
        self._closed = True
        if had_changes:
            message = f"{self._storage.location}: uncommitted changes were dropped: call commit() first"
            warnings.warn(message, UncommittedChangesWarning, stacklevel=stacklevel)

    def _require_open(self) -> None:
        if self._closed:
            raise UsageError(f"{self._storage.location}: this Index was closed; open it again to change it")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.rollback()  # no warning on top of the exception
        self._close(stacklevel=3)


def _restore_index(
    storage: Storage,
    memory: int,
    model: AnyPath | None,
    threads: int | None,
    query_model: AnyPath | None = None,
) -> Index:
    """Restore a pickled Index."""
    return Index(storage, memory, model, threads, query_model=query_model)


def _restore_searcher(
    snapshot: Snapshot,
    memory: int,
    model: AnyPath | None,
    query_model: AnyPath | None,
    threads: int | None,
    *options: Any,
) -> Searcher:
    """Restore a pickled Searcher."""
    index = Index(snapshot.storage, memory, model, threads, query_model=query_model)
    return index._searcher(snapshot, *options)


def _word_searcher(snapshot: Snapshot, threads: int | None, engine: str) -> Searcher:
    """A searcher of the BM25 lists beside those of a model."""
    searcher = Searcher(snapshot, threads, engine)
    searcher.recipe = (_word_searcher, (threads, engine))
    return searcher


def _conditions(filter: GivenFilter) -> Filter:
    """A filter that chooses what is changed; one that matches everything is refused."""
    parsed = given_filter(filter)
    if parsed is None or not any(comparisons(parsed)):
        raise FilterError("the filter has no condition, so it would change every document: name them")
    return parsed


def truncation_message(documents: int, limit: int | None) -> str:
    """The warning for truncated documents.

    >>> truncation_message(2, 512)
    '2 documents are longer than the 512 tokens that the model reads; the rest of their text is not
    searchable: ...'
    """
    are, their = ("document is", "its") if documents == 1 else ("documents are", "their")
    return (
        f"{documents:,} {are} longer than the {limit} tokens that the model reads; the rest of {their} text "
        'is not searchable: create the index with long="chunk", or split the text'
    )
