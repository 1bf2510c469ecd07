"""The served index: one shared searcher, replaced as a whole by each new generation."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from citadel.api import Index
from citadel.errors import CitadelError, InputError, ServerError, UsageError
from citadel.index.check import check_new_files
from citadel.search.engine import EngineOpener
from citadel.search.index_hybrid import DEFAULT_METHOD, DEFAULT_WEIGHTS, IndexHybrid
from citadel.search.searcher import Searcher
from citadel.server.config import ServerConfig
from citadel.server.errors import busy
from citadel.server.index_stats import IndexStatsCache
from citadel.server.kept_generations import KeptGenerations
from citadel.server.ledger import Ledger
from citadel.text.new_ids import NewIds
from citadel.text.parse import make_document
from citadel.types import Document

T = TypeVar("T")
_log = logging.getLogger("citadel.server")


class Serving(NamedTuple):
    """The searchers of one generation; `bm25` is None in an index without BM25 lists beside its model's."""

    searcher: Searcher
    bm25: Searcher | None = None


class WriteSlots:
    """Changes that run or wait; the indexes of one server share the limit, because bodies take memory."""

    def __init__(self, limit: int) -> None:
        self._free = limit

    def take(self) -> None:
        """Take a slot, or raise 503."""
        if not self._free:
            raise busy("too many changes are waiting for the writer")
        self._free -= 1

    def give_back(self) -> None:
        """Free a slot."""
        self._free += 1


class Service:
    """Searches use the current `searcher`; changes run one at a time in the writer's thread."""

    def __init__(
        self,
        index: Index,
        config: ServerConfig,
        slots: WriteSlots | None = None,
        engine: str | EngineOpener = "native",
    ) -> None:
        self.index, self.config, self.started = index, config, time.monotonic()
        self._engine = engine
        self._serving, self.index_stats = self._open_searchers(), IndexStatsCache()
        self.kept = KeptGenerations()  # for listings
        self.waiting = 0  # uncommitted changes
        self._ledger = Ledger()  # for the writer's thread only
        self.reload_error: str | None = None
        self.commits = self.reloads = self.reload_failures = 0
        self._writer = ThreadPoolExecutor(1, "citadel-writer")
        self._slots = slots or WriteSlots(config.limits.writes)

    @property
    def searcher(self) -> Searcher:
        """The searcher of the mode `model`."""
        return self._serving.searcher

    def searcher_of(
        self, mode: str = "model", fusion: str | None = None, weights: Sequence[float] | None = None
    ) -> Searcher | IndexHybrid:
        """The searcher of a mode; method and weights are for `hybrid`."""
        serving = self._serving
        if mode != "hybrid" and (fusion is not None or weights is not None):
            raise UsageError(
                'fusion and weights are for the mode hybrid: send mode: "hybrid", or leave them out'
            )
        if mode == "model" or (mode == "bm25" and serving.searcher.settings.router == "bm25"):
            return serving.searcher
        if serving.bm25 is None:
            raise UsageError(f"the mode {mode} needs an index built with `citadel index --hybrid`")
        if mode == "bm25":
            return serving.bm25
        chosen = (fusion or DEFAULT_METHOD, DEFAULT_WEIGHTS if weights is None else weights)
        return IndexHybrid(serving.searcher, serving.bm25, *chosen)

    def _open_searchers(self, previous: Searcher | None = None) -> Serving:
        """Open the searchers and run one query each: loads the model and detects damage before they serve."""
        searcher = self.index.searcher(
            threads=self.config.threads,
            engine=self._engine,
            device=self.config.device,
            gpu_memory=self.config.gpu_memory,
        )
        if previous is not None:
            check_new_files(searcher.snapshot, previous.snapshot)
        if searcher.settings.has_text_queries:
            searcher.search("the first query", k=1)
        if searcher.settings.words is None:
            return Serving(searcher)
        bm25 = self.index.searcher(mode="bm25", threads=self.config.threads)
        bm25.search("the first query", k=1)
        return Serving(searcher, bm25)

    @property
    def generation(self) -> int:
        """The generation being served."""
        return self.searcher.snapshot.manifest.generation

    @property
    def location(self) -> str:
        """The index folder; never shown to clients."""
        return self.searcher.snapshot.storage.location

    def close(self) -> None:
        """Close the index; uncommitted changes are dropped and logged."""
        self._writer.shutdown()
        self.index.close()

    # -- changes ---------------------------------------------------------------------------------------------

    async def add(
        self, documents: Sequence[Mapping[str, Any]], commit: bool = False, covers: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Add documents, all or none; fail if a change whose token is in `covers` is lost."""
        return await self._in_writer(lambda: self._change(lambda: self._add(documents), commit, covers))

    async def delete(
        self,
        ids: Sequence[str] | None,
        filter: Mapping[str, Any] | None = None,
        commit: bool = False,
        covers: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Delete by id or by filter; `covers` as for `add`."""
        return await self._in_writer(lambda: self._change(lambda: self._delete(ids, filter), commit, covers))

    async def update_metadata(
        self, which: Sequence[str] | Mapping[str, Any], values: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Change metadata by ids or filter, as a commit of its own; fail while changes wait."""
        return await self._in_writer(lambda: self._update_metadata(which, values))

    async def commit(self, covers: Sequence[str] = ()) -> dict[str, Any]:
        """Make all changes durable and visible; fail if a change in `covers` is lost."""
        return await self._in_writer(lambda: self._commit_covering(covers))

    async def rollback(self) -> dict[str, Any]:
        """Drop all uncommitted changes."""
        return await self._in_writer(self._rollback)

    async def merge(self) -> dict[str, Any]:
        """Merge all segments into one; fail while changes wait."""
        return await self._in_writer(self._merge)

    async def reload(self) -> None:
        """Load commits of other processes; a damaged generation is reported and not served."""
        await self._in_writer(self._reload)

    def _change(
        self, change: Callable[[], dict[str, Any]], commit: bool, covers: Sequence[str]
    ) -> dict[str, Any]:
        """Make a change, issue its token, and commit it on request."""
        self._detect_losses()
        self._ledger.is_durable(covers)  # raises if one is lost
        try:
            counts = change()
        except BaseException:
            self._detect_losses()
            if not self.index.has_changes:
                self.index.rollback()  # releases the lock
            raise
        token = self._ledger.accept()
        if not self.index.has_changes:  # no effect, such as an unknown id
            self._mark_durable()
            self.index.rollback()  # releases the lock
        elif commit:
            self._commit()
        return counts | {"changes": token, "waiting": self.waiting, "generation": self.generation}

    def _add(self, documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        new_ids = NewIds()
        added, cut = self.index.add_checked(
            [_document(position, fields, new_ids) for position, fields in enumerate(documents)]
        )
        self.waiting += added
        counts = {"documents": cut, "limit": self.index.max_tokens}
        return {"added": added, "generated_ids": new_ids.made, "cut": counts}

    def _delete(self, ids: Sequence[str] | None, filter: Mapping[str, Any] | None) -> dict[str, Any]:
        deleted = self.index.delete(ids, filter=filter)
        self.waiting += deleted
        return {"deleted": deleted}

    def _update_metadata(
        self, which: Sequence[str] | Mapping[str, Any], values: Mapping[str, Any]
    ) -> dict[str, Any]:
        self._require_no_changes("new metadata are")
        updated = self.index.update_metadata(which, values)
        if updated:
            self.commits += 1
            self._serve_newest()
        return {"updated": updated, "generation": self.generation}

    def _require_no_changes(self, what: str) -> None:
        self._detect_losses()
        if self.index.has_changes:
            raise ServerError(
                409,
                "changes_waiting",
                f"changes wait for a commit, and {what} a commit of their own: commit or drop them first",
            )

    def _rollback(self) -> dict[str, Any]:
        dropped = self.waiting
        self.index.rollback()
        self._mark_lost()
        return {"dropped": dropped, "waiting": self.waiting, "generation": self.generation}

    def _merge(self) -> dict[str, Any]:
        self._require_no_changes("merges are")
        before = self.index.generation
        try:
            self.index.merge()
        finally:
            self.index.rollback()  # releases the lock
        if self.index.generation != before:
            self.commits += 1
            self._serve_newest()
        return {"generation": self.generation, "documents": len(self.searcher), "waiting": self.waiting}

    def _commit_covering(self, covers: Sequence[str]) -> dict[str, Any]:
        self._detect_losses()
        if not covers:
            self._ledger.require_uncommitted()
        if not covers or not self._ledger.is_durable(covers):
            self._commit()
        return {"generation": self.generation, "documents": len(self.searcher), "waiting": self.waiting}

    def _commit(self) -> None:
        try:
            self.index.commit()
        except BaseException:
            self.index.rollback()  # a failed commit drops all uncommitted changes
            self._mark_lost()
            raise
        self._mark_durable()
        self.commits += 1
        self._serve_newest()

    def _serve_newest(self) -> None:
        self._serving = self._open_searchers(self.searcher)
        self.kept.prune()

    def _detect_losses(self) -> None:
        """Mark changes as lost if the index has dropped them."""
        if not self.index.has_changes:
            self._mark_lost()

    def _mark_durable(self) -> None:
        self.waiting = 0
        self._ledger.commit()

    def _mark_lost(self) -> None:
        self.waiting = 0
        if self._ledger.has_uncommitted:
            self._ledger.drop()

    def _reload(self) -> None:
        try:
            self.index.refresh()
            self.kept.prune()
            if self.index.generation != self.generation:
                self._serve_newest()
                self.reloads += 1
                _log.info("reloaded", extra={"generation": self.generation})
            self.reload_error = None
        except CitadelError as error:
            self.reload_failures += 1
            if self.reload_error is None:
                _log.error("reload failed", extra={"reason": str(error)})
            self.reload_error = "the newest generation cannot be opened; the previous one is still served"

    async def _in_writer(self, work: Callable[[], T]) -> T:
        """Run a function in the writer's thread, in order of arrival."""
        self._slots.take()
        task = self._writer.submit(work)
        future = asyncio.wrap_future(task)
        future.add_done_callback(self._write_done)
        seconds = self.config.limits.write_deadline_ms / 1000
        try:
            return await asyncio.wait_for(asyncio.shield(future), seconds)
        except TimeoutError:
            if task.cancel():  # it has not begun
                raise ServerError(
                    504,
                    "deadline",
                    f"the change waited {seconds:g} seconds for the writer and was not made: send it again",
                ) from None
            raise ServerError(
                504,
                "deadline",
                f"the change is still running after {seconds:g} seconds: it is safe to send it again, "
                "unless it adds documents without ids",
            ) from None

    def _write_done(self, future: asyncio.Future[Any]) -> None:
        self._slots.give_back()
        if not future.cancelled():
            future.exception()  # retrieved, so that asyncio does not log it after a timeout


def _document(position: int, fields: Mapping[str, Any], new_id: Callable[[], str]) -> Document:
    try:
        return make_document(fields, new_id)
    except InputError as error:
        raise InputError(f"documents.{position}: {error}; none was added") from None
