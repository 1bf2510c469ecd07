"""The index behind the server: one searcher that everybody shares, swapped whole when a generation is new."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from citadel.api import Index
from citadel.errors import CitadelError, InputError, ServerError
from citadel.index.check import check_new_files
from citadel.search.searcher import Searcher
from citadel.server.config import ServerConfig
from citadel.server.errors import busy
from citadel.server.index_stats import IndexFigures
from citadel.server.ledger import Ledger
from citadel.text.parse import make_document
from citadel.types import Document

T = TypeVar("T")
_log = logging.getLogger("citadel.server")


class Service:
    """Reads go to `searcher`, whichever it is when they begin; changes go one by one through a thread of their own."""

    def __init__(self, index: Index, config: ServerConfig) -> None:
        self.index, self.config, self.started = index, config, time.monotonic()
        self.searcher, self.figures = self._searcher(), IndexFigures()
        self.waiting = 0  # changes that wait for a commit
        self._ledger = Ledger()  # used in the writer's thread only
        self.reload_error: str | None = None
        self.commits = self.reloads = self.reload_failures = 0
        self._writer = ThreadPoolExecutor(1, "citadel-writer")
        self._writes = 0

    def _searcher(self, before: Searcher | None = None) -> Searcher:
        """A searcher that has answered once: a model is loaded, and broken files are found, before anybody asks."""
        searcher = self.index.searcher(
            threads=self.config.threads, device=self.config.device, gpu_memory=self.config.gpu_memory
        )
        if before is not None:
            check_new_files(searcher.snapshot, before.snapshot)
        if searcher.settings.has_text_queries:
            searcher.search("the first query", k=1)
        return searcher

    @property
    def generation(self) -> int:
        return self.searcher.snapshot.manifest.generation

    @property
    def location(self) -> str:
        """The index's folder, which is no client's business."""
        return self.searcher.snapshot.storage.location

    def close(self) -> None:
        """End; what was not committed is dropped, and said so in the log."""
        self._writer.shutdown()
        self.index.close()

    # -- changes -------------------------------------------------------------------------------------------------------

    async def add(
        self, documents: Sequence[Mapping[str, Any]], commit: bool = False, covers: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Add documents, all or none; `covers` are tokens of earlier changes that must not be lost."""
        return await self._in_writer(lambda: self._change(lambda: self._add(documents), commit, covers))

    async def delete(self, ids: Sequence[str], commit: bool = False, covers: Sequence[str] = ()) -> dict[str, Any]:
        """Delete by id; `covers` as for `add`."""
        return await self._in_writer(lambda: self._change(lambda: self._delete(ids), commit, covers))

    async def commit(self, covers: Sequence[str] = ()) -> dict[str, Any]:
        """Make all changes durable and visible; an error when one that `covers` names is lost."""
        return await self._in_writer(lambda: self._commit_covering(covers))

    async def reload(self) -> None:
        """See what other processes have committed; a broken generation is told and not served."""
        await self._in_writer(self._reload)

    def _change(self, change: Callable[[], dict[str, Any]], commit: bool, covers: Sequence[str]) -> dict[str, Any]:
        """Make a change, give it a token, and commit it if asked to."""
        self._notice_losses()
        self._ledger.is_durable(covers)  # raises when one is lost
        try:
            done = change()
        except BaseException:
            self._notice_losses()
            if not self.index.has_changes:
                self.index.rollback()  # releases the lock
            raise
        token = self._ledger.accept()
        if not self.index.has_changes:  # nothing to lose: an unknown id was deleted, or an added document again
            self._settled()
            self.index.rollback()  # releases the lock
        elif commit:
            self._commit()
        return done | {"changes": token, "waiting": self.waiting, "generation": self.generation}

    def _add(self, documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        checked = [_document(place, fields) for place, fields in enumerate(documents)]
        added = self.index.add(checked)
        self.waiting += added
        return {"added": added}

    def _delete(self, ids: Sequence[str]) -> dict[str, Any]:
        deleted = self.index.delete(ids)
        self.waiting += deleted
        return {"deleted": deleted}

    def _commit_covering(self, covers: Sequence[str]) -> dict[str, Any]:
        self._notice_losses()
        if not covers:
            self._ledger.require_waiting()
        if not covers or not self._ledger.is_durable(covers):
            self._commit()
        return {"generation": self.generation, "documents": len(self.searcher), "waiting": self.waiting}

    def _commit(self) -> None:
        try:
            self.index.commit()
        except BaseException:
            self.index.rollback()  # a failed commit leaves nothing behind
            self._dropped()
            raise
        self._settled()
        self.commits += 1
        self.searcher = self._searcher(self.searcher)

    def _notice_losses(self) -> None:
        """The index itself says whether anything waits: what it has dropped is not committed in silence."""
        if not self.index.has_changes:
            self._dropped()

    def _settled(self) -> None:
        self.waiting = 0
        self._ledger.commit()

    def _dropped(self) -> None:
        self.waiting = 0
        if self._ledger.waits:
            self._ledger.drop()

    def _reload(self) -> None:
        try:
            self.index.refresh()
            if self.index.generation != self.generation:
                self.searcher = self._searcher(self.searcher)
                self.reloads += 1
                _log.info("reloaded", extra={"generation": self.generation})
            self.reload_error = None
        except CitadelError as error:
            self.reload_failures += 1
            if self.reload_error is None:
                _log.error("the new generation is not served", extra={"reason": str(error)})
            self.reload_error = "the newest generation cannot be opened; the one before it is served"

    async def _in_writer(self, work: Callable[[], T]) -> T:
        """Run in the writer's thread, after those that came before."""
        if self._writes >= self.config.limits.writes:
            raise busy("too many changes wait for the writer")
        self._writes += 1
        running = asyncio.get_running_loop().run_in_executor(self._writer, work)
        running.add_done_callback(self._written)
        seconds = self.config.limits.write_deadline_ms / 1000
        try:
            return await asyncio.wait_for(asyncio.shield(running), seconds)
        except TimeoutError:
            raise ServerError(
                504,
                "deadline",
                f"the change is still being made after {seconds:g} seconds: it is safe to send it again",
            ) from None

    def _written(self, running: asyncio.Future[Any]) -> None:
        self._writes -= 1
        if not running.cancelled():
            running.exception()  # looked at, also when nobody waits any more


def _document(place: int, fields: Mapping[str, Any]) -> Document:
    try:
        return make_document(fields)
    except InputError as error:
        raise InputError(f"documents.{place}: {error}; none was added") from None
