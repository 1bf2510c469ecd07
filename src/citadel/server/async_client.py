"""`citadel.AsyncClient`: the interface of `citadel.Client` for asyncio, with the standard library alone."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

from citadel.errors import Cancelled, UsageError
from citadel.filter.parse import GivenFilter
from citadel.filter.tree import Scalar
from citadel.server.client import Client
from citadel.server.client_results import RemoteHits
from citadel.text.parse import AnyId
from citadel.types import AddedCount, Document, Ranking

T = TypeVar("T")
_CONNECTIONS = 32
_DOCUMENTS_PER_STEP = 100


class _Call:
    """A call in a worker thread; cancelling it closes its connection, and the server stops the search."""

    def __init__(self) -> None:
        self._lock, self._cancelled = threading.Lock(), False
        self._connection: http.client.HTTPConnection | None = None

    def use(self, connection: http.client.HTTPConnection | None) -> None:
        """Remember the connection in use; raises when the call was cancelled."""
        with self._lock:
            if self._cancelled and connection is not None:
                raise Cancelled("the request was cancelled")
            self._connection = connection

    def cancel(self) -> None:
        """Close the connection in use; its thread then raises."""
        with self._lock:
            self._cancelled = True
            if self._connection is not None and self._connection.sock is not None:
                with contextlib.suppress(OSError):  # closed meanwhile
                    self._connection.sock.shutdown(socket.SHUT_RDWR)


class _ThreadClient(Client):
    """A client whose calls in worker threads can be cancelled."""

    def run(self, call: _Call, work: Callable[[], T]) -> T:
        """Run `work` in this thread as part of a call."""
        self._threads.call = call
        try:
            return work()
        finally:
            call.use(None)
            self._threads.call = None

    def _once(self, method: str, path: str, payload: bytes | None) -> tuple[int, Mapping[str, str], bytes]:
        call: _Call | None = getattr(self._threads, "call", None)
        if call is not None:
            connection = getattr(self._threads, "connection", None) or self._connect()
            if connection.sock is None:
                connection.connect()
            call.use(connection)
        return super()._once(method, path, payload)

    def get(self, id: AnyId) -> Document | None:
        """Return a document; raises in the thread of an event loop, which it would block."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return super().get(id)
        raise UsageError(f"the text of {id!r} was not sent with the hit: use `await client.get({id!r})`")


class AsyncClient:
    """`citadel.Client` for asyncio: its methods, awaited. Tasks may share it.

    Cancelling a call closes its connection, and the server stops the search; a change may still be made. At
    most `connections` calls run at a time, each in a worker thread. A text that is cut in a response, or left
    out with `documents=False`, is fetched with `await client.get(hit.id)`.

    >>> client = AsyncClient("http://127.0.0.1:8080", index="physics")
    >>> client.url, client.index
    ('http://127.0.0.1:8080', 'physics')
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = 130.0,
        index: str | None = None,
        connections: int = _CONNECTIONS,
    ) -> None:
        if isinstance(connections, bool) or not isinstance(connections, int) or connections < 1:
            raise UsageError(f"connections must be a whole number of 1 or more, not {connections!r}")
        self._client = _ThreadClient(url, token=token, timeout=timeout, index=index)
        self._workers = ThreadPoolExecutor(connections, "citadel-client")
        self.url, self.index = self._client.url, self._client.index

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
        self._client.__exit__(*error)  # type: ignore[arg-type]

    async def close(self) -> None:
        """Close all connections; calls that wait for one are cancelled."""
        self._workers.shutdown(wait=False, cancel_futures=True)
        await asyncio.sleep(0)

    async def _run(self, work: Callable[[], T]) -> T:
        """Run blocking code in a worker thread; cancelling closes its connection."""
        call = _Call()
        try:
            future = asyncio.get_running_loop().run_in_executor(self._workers, self._client.run, call, work)
        except RuntimeError as error:
            raise UsageError(f"{self.url}: this client was closed: create another") from error
        try:
            return await future
        finally:
            if not future.done() or future.cancelled():
                call.cancel()

    # -- searching

    async def search(self, query: str, k: int = 10, **options: Any) -> RemoteHits:
        """Return the best k documents for a text, with the options of `Client.search`."""
        return await self._run(lambda: self._client.search(query, k, **options))

    async def search_vectors(
        self,
        keys: Any = None,
        weights: Any = None,
        vectors: Any = None,
        semantic: Any = None,
        k: int = 10,
        **options: Any,
    ) -> RemoteHits:
        """Return the best k documents for given query vectors, as `Client.search_vectors` does."""
        query = (keys, weights, vectors, semantic)
        return await self._run(lambda: self._client.search_vectors(*query, k, **options))

    async def search_batch(
        self,
        queries: Sequence[str] | Sequence[tuple[str, str]] | Mapping[str, str],
        k: int = 10,
        **options: Any,
    ) -> Ranking:
        """Return the hits of many queries, with the options of `Client.search_batch`."""
        return await self._run(lambda: self._client.search_batch(queries, k, **options))

    async def search_vectors_batch(
        self, queries: Mapping[str, Mapping[str, Any]], k: int = 10, **options: Any
    ) -> Ranking:
        """Return the hits of many queries given as vectors, with the options of `Client`."""
        return await self._run(lambda: self._client.search_vectors_batch(queries, k, **options))

    async def explain(self, query: str, id: str, **options: Any) -> dict[str, Any]:
        """Explain the score of a document, with the options of `Client.explain`."""
        return await self._run(lambda: self._client.explain(query, id, **options))

    async def explain_text(
        self, text: str, *, tau: float | None = None, side: str = "document"
    ) -> dict[str, Any]:
        """Return every token of a text with its keys and weights."""
        return await self._run(lambda: self._client.explain_text(text, tau=tau, side=side))

    # -- documents

    async def get(self, id: AnyId) -> Document | None:
        """Return the committed document with this id, or None."""
        return await self._run(lambda: self._client.get(id))

    async def add(self, documents: Iterable[Mapping[str, Any]], *, commit: bool = False) -> AddedCount:
        """Add documents and return how many were added, as `Client.add` does."""
        return await self._run(lambda: self._client.add(documents, commit=commit))

    async def delete(
        self,
        ids: AnyId | Iterable[AnyId] | None = None,
        *,
        filter: GivenFilter | None = None,
        commit: bool = False,
    ) -> int:
        """Delete documents by id, or committed documents by a filter; return how many existed."""
        return await self._run(lambda: self._client.delete(ids, filter=filter, commit=commit))

    async def update_metadata(
        self, which: AnyId | Iterable[AnyId] | Mapping[str, Any], values: Mapping[str, Any]
    ) -> int:
        """Change metadata by id, ids or filter, and return the number of documents."""
        return await self._run(lambda: self._client.update_metadata(which, values))

    async def count(self, filter: GivenFilter | None = None) -> int:
        """Return the number of documents whose metadata match a filter."""
        return await self._run(lambda: self._client.count(filter))

    async def facets(
        self, field: str, filter: GivenFilter | None = None, limit: int = 100
    ) -> list[tuple[Scalar, int]]:
        """Return the values of a metadata field with their counts, most frequent first."""
        return await self._run(lambda: self._client.facets(field, filter, limit))

    async def fields(self) -> dict[str, str]:
        """Return the metadata fields with what they hold."""
        return await self._run(self._client.fields)

    def ids(self, filter: GivenFilter | None = None) -> AsyncIterator[str]:
        """Iterate over the ids of all documents, or of those that match a filter, in commit order."""
        return self._iterate(lambda: self._client.ids(filter))

    def documents(self, filter: GivenFilter | None = None, batch: int = 100) -> AsyncIterator[Document]:
        """Iterate over all documents, or those that match a filter, in commit order."""
        return self._iterate(lambda: self._client.documents(filter, batch))

    async def _iterate(self, start: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
        iterator = await self._run(start)
        while part := await self._run(lambda: list(itertools.islice(iterator, _DOCUMENTS_PER_STEP))):
            for item in part:
                yield item

    async def commit(self) -> int:
        """Make all changes durable and visible; return the generation."""
        return await self._run(self._client.commit)

    async def rollback(self) -> int:
        """Drop all uncommitted changes on the server; return how many."""
        return await self._run(self._client.rollback)

    async def merge(self) -> int:
        """Merge all segments into one, without deleted documents; return the generation."""
        return await self._run(self._client.merge)

    async def stats(self) -> dict[str, Any]:
        """Return statistics of the index, memory and limits."""
        return await self._run(self._client.stats)

    async def indexes(self) -> list[dict[str, Any]]:
        """Return the indexes of the server that the token may read."""
        return await self._run(self._client.indexes)

    async def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Call any route with a JSON value and return its JSON."""
        return await self._run(lambda: self._client.call(method, path, body))
