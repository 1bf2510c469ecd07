"""`citadel.Client`: the interface of `Searcher` over HTTP, with the standard library alone."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.parse
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from citadel.errors import (
    ChangesLostError,
    CorruptIndexError,
    FilterError,
    InputError,
    ResourceError,
    ServerError,
    TruncatedDocumentsWarning,
    UncommittedChangesWarning,
    UsageError,
)
from citadel.filter.parse import GivenFilter
from citadel.filter.tree import Scalar
from citadel.server.client_filter import filter_json
from citadel.server.client_results import RemoteHits, facet_pairs, listed_document
from citadel.server.error_codes import ERROR_CODES
from citadel.server.names import check_name
from citadel.text.new_ids import NewIds
from citadel.text.parse import AnyId, known_id, known_ids
from citadel.text.queries import named_queries, query_id
from citadel.text.values import json_default
from citadel.types import AddedCount, Document, Ranking

_DOCUMENTS_PER_REQUEST = 500
_CHARACTERS_PER_REQUEST = 500_000  # some hundred passages: seconds for the default model
_EXCEPTIONS = {code: kind for kind, _, code in ERROR_CODES}
# An idle connection was closed.
_CLOSED = (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError)


class _Http(http.client.HTTPConnection):
    def __del__(self) -> None:
        self.close()  # when its thread has ended


class _Https(http.client.HTTPSConnection):
    __del__ = _Http.__del__


class _Uncommitted:
    """Tokens of uncommitted changes; the newest of an epoch covers the earlier ones."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}  # epoch → sequence number
        self._lock = threading.Lock()

    def tokens(self) -> list[str]:
        with self._lock:
            return [f"{epoch}-{sequence}" for epoch, sequence in self._newest.items()]

    def remember(self, token: str) -> None:
        epoch, _, sequence = token.partition("-")
        with self._lock:
            self._newest[epoch] = max(int(sequence), self._newest.get(epoch, 0))

    def forget(self, tokens: Sequence[str]) -> None:
        """Drop tokens up to these; another thread may have added newer ones meanwhile."""
        with self._lock:
            for epoch, _, sequence in (token.partition("-") for token in tokens):
                if self._newest.get(epoch, 0) <= int(sequence):
                    self._newest.pop(epoch, None)


class Client:
    """Search and change an index through its server. Threads can share it; each has its own connection.

    Processes can share it too: a pickled copy has the address, the name of the index, the token and the
    timeout, and opens its own connections. `index` is a name, for servers of several indexes.

    >>> with Client("http://127.0.0.1:8080", index="physics") as client:
    ...     client.url, client.index
    ('http://127.0.0.1:8080', 'physics')
    """

    def __init__(
        self, url: str, *, token: str | None = None, timeout: float = 130.0, index: str | None = None
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise UsageError(f"{url!r} is not the address of a server: write it as http://127.0.0.1:8080")
        self.url, self._parts, self._token, self._timeout = url.rstrip("/"), parts, token, timeout
        self.index = None if index is None else check_name(index)
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._threads = threading.local()
        self._limits: dict[str, int] | None = None
        self._uncommitted = _Uncommitted()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the address and the token; changes of this client must be committed before."""
        if self._uncommitted.tokens():
            raise UsageError(f"{self.url}: a client with uncommitted changes cannot be pickled; commit them")
        return _restore, (type(self), self.url, self._token, self._timeout, self.index)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        if kind is None:
            self._warn_uncommitted(stacklevel=3)

    def _warn_uncommitted(self, stacklevel: int) -> None:
        if self._uncommitted.tokens():
            message = f"{self.url}: changes of this client are uncommitted: commit or roll them back"
            warnings.warn(message, UncommittedChangesWarning, stacklevel)

    # -- searching -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self.stats()["index"]["documents"])

    def search(
        self,
        query: str,
        k: int = 10,
        *,
        semantic_mode: str = "auto",
        tau: float | None = None,
        documents: bool = True,
        filter: GivenFilter | None = None,
        offset: int = 0,
        min_score: float | None = None,
        group_by: str | None = None,
        ef: int | None = None,
        effort: float | None = None,
        passages: bool = False,
        facets: Sequence[str] = (),
        min_relevance: float | None = None,
        mode: str = "model",
        fusion: str | None = None,
        weights: Sequence[float] | None = None,
    ) -> RemoteHits:
        """Return the best k documents for a text.

        `mode`, `fusion` and `weights` are those of `Index.searcher`.

        `facets` names metadata fields; `hits.facets` has their values with the number of documents, over all
        documents that match the filter, and `hits.matching` is the number of these documents. `passages` also
        returns the other passages of long documents, for `hit.passages`.
        """
        page = (offset, min_score, group_by, ef, effort)
        options = _options(k, semantic_mode, tau, documents, filter, *page)
        options |= {"passages": passages, "min_relevance": min_relevance}
        options |= _mode_options(mode, fusion, weights)
        return self._search({"query": query, "facets": list(facets)} | options)

    def search_vectors(
        self,
        keys: Any = None,
        weights: Any = None,
        vectors: Any = None,
        semantic: Any = None,
        k: int = 10,
        *,
        semantic_mode: str = "auto",
        tau: float | None = None,
        documents: bool = True,
        filter: GivenFilter | None = None,
        offset: int = 0,
        min_score: float | None = None,
        group_by: str | None = None,
        ef: int | None = None,
        effort: float | None = None,
        passages: bool = False,
        facets: Sequence[str] = (),
    ) -> RemoteHits:
        """Return the best k documents for given query vectors."""
        query = {"vectors": _as_lists(keys=keys, weights=weights, vectors=vectors, semantic=semantic)}
        page = (offset, min_score, group_by, ef, effort)
        options = _options(k, semantic_mode, tau, documents, filter, *page)
        options["passages"] = passages
        return self._search(query | {"facets": list(facets)} | options)

    def search_batch(
        self,
        queries: Sequence[str] | Sequence[tuple[str, str]] | Mapping[str, str],
        k: int = 10,
        *,
        semantic_mode: str = "auto",
        tau: float | None = None,
        documents: bool = False,
        filter: GivenFilter | None = None,
        offset: int = 0,
        min_score: float | None = None,
        group_by: str | None = None,
        ef: int | None = None,
        effort: float | None = None,
        mode: str = "model",
        fusion: str | None = None,
        weights: Sequence[float] | None = None,
    ) -> Ranking:
        """Return the hits of many queries in their order, in as many requests as the server's limits need."""
        named = [{"id": id, "query": text} for id, text in named_queries(queries)]
        page = (offset, min_score, group_by, ef, effort)
        options = _options(k, semantic_mode, tau, documents, filter, *page)
        options |= _mode_options(mode, fusion, weights)
        return self._batch(named, options)

    def search_vectors_batch(
        self,
        queries: Mapping[str, Mapping[str, Any]],
        k: int = 10,
        *,
        semantic_mode: str = "auto",
        tau: float | None = None,
        documents: bool = False,
        filter: GivenFilter | None = None,
        offset: int = 0,
        min_score: float | None = None,
        group_by: str | None = None,
        ef: int | None = None,
        effort: float | None = None,
    ) -> Ranking:
        """Return the hits of many queries given as vectors: id → {keys, weights, vectors, semantic}."""
        named = [{"id": query_id(id), "vectors": _as_lists(**query)} for id, query in queries.items()]
        page = (offset, min_score, group_by, ef, effort)
        options = _options(k, semantic_mode, tau, documents, filter, *page)
        return self._batch(named, options)

    def explain(
        self,
        query: str,
        id: str,
        *,
        semantic_mode: str = "auto",
        tau: float | None = None,
        mode: str = "model",
        fusion: str | None = None,
        weights: Sequence[float] | None = None,
    ) -> dict[str, Any]:
        """Explain the score of a document, in the JSON of docs/reference/explanation.md."""
        body = {"query": query, "id": id, "semantic_mode": semantic_mode, "tau": tau}
        body |= _mode_options(mode, fusion, weights)
        return dict(self.call("POST", "/v1/explain", body)["explanation"])

    def explain_text(self, text: str, *, tau: float | None = None, side: str = "document") -> dict[str, Any]:
        """Return every token of a text with its keys and weights."""
        return dict(
            self.call("POST", "/v1/explain/text", {"text": text, "tau": tau, "side": side})["explanation"]
        )

    # -- documents -------------------------------------------------------------------------------------------

    def get(self, id: AnyId) -> Document | None:
        """Return the committed document with this id, or None."""
        known = known_id(id)
        if known is None:
            return None
        try:
            fields = self.call("GET", f"/v1/documents?{urllib.parse.urlencode({'id': known})}")
        except ServerError as error:
            if error.code == "not_found":
                return None
            raise
        return Document(fields["id"], fields["text"], fields["title"], fields["metadata"])

    def add(self, documents: Iterable[Mapping[str, Any]], *, commit: bool = False) -> AddedCount:
        """Add documents and return how many were added.

        Many documents are sent in several requests; each adds all of its documents or none. A document
        without `id` gets one here, so that a repeated request does not add it twice. Texts longer than the
        model reads are split, or cut with one `TruncatedDocumentsWarning` per call, by the index.
        """
        new_ids = NewIds()
        sent = [_with_id(fields, new_ids) for fields in documents]
        parts, added, cut, limit = list(_parts(sent)), 0, 0, None
        for number, part in enumerate(parts, 1):
            is_last = number == len(parts)
            answer = self._change("/v1/documents", {"documents": part}, commit and is_last)
            added += answer["added"]
            own = answer.get("cut") or {}
            cut, limit = cut + own.get("documents", 0), own.get("limit")
        if cut:
            from citadel.api import truncation_message

            warnings.warn(truncation_message(cut, limit), TruncatedDocumentsWarning, stacklevel=2)
        return AddedCount(added, cut, limit, new_ids.made)

    def delete(
        self,
        ids: AnyId | Iterable[AnyId] | None = None,
        *,
        filter: GivenFilter | None = None,
        commit: bool = False,
    ) -> int:
        """Delete documents by id, or committed documents by a filter; return how many existed."""
        if (ids is None) == (filter is None):
            raise UsageError("delete takes either ids or a filter")
        body = {"filter": filter_json(filter)} if ids is None else {"ids": known_ids(ids)}
        return int(self._change("/v1/delete", body, commit)["deleted"])

    def update_metadata(
        self, which: AnyId | Iterable[AnyId] | Mapping[str, Any], values: Mapping[str, Any]
    ) -> int:
        """Change metadata by id, ids or filter, and return the number of documents.

        Named fields change, None removes a field, others stay. It is a commit of its own, refused with
        ServerError (`changes_waiting`) while the server has uncommitted changes.
        """
        chosen = {"filter": filter_json(which)} if isinstance(which, Mapping) else {"ids": known_ids(which)}
        return int(self.call("POST", "/v1/metadata", chosen | {"values": dict(values)})["updated"])

    def count(self, filter: GivenFilter | None = None) -> int:
        """Return the number of documents whose metadata match a filter."""
        return int(self.call("POST", "/v1/count", {"filter": filter_json(filter)})["count"])

    def facets(
        self, field: str, filter: GivenFilter | None = None, limit: int = 100
    ) -> list[tuple[Scalar, int]]:
        """Return the values of a metadata field with their counts, most frequent first."""
        body = {"fields": [field], "filter": filter_json(filter), "limit": limit}
        return facet_pairs(self.call("POST", "/v1/facets", body)["facets"])[field]

    def fields(self) -> dict[str, str]:
        """Return the metadata fields with what they hold, as `Index.fields` does."""
        return {row["name"]: row["kind"] for row in self.call("GET", "/v1/fields")["fields"]}

    def ids(self, filter: GivenFilter | None = None) -> Iterator[str]:
        """Iterate over the ids of all documents, or of those that match a filter, in commit order."""
        limit = self._limit("listed")
        pages = self._pages({"filter": filter_json(filter), "limit": limit, "documents": False})
        return (id for page in pages for id in page["ids"])

    def documents(self, filter: GivenFilter | None = None, batch: int = 100) -> Iterator[Document]:
        """Iterate over all documents, or those that match a filter, in commit order; `batch` per request.

        A listing is of one generation. ServerError (`cursor`) is raised when more than a minute passed
        between two pages and the server has moved on: start again.
        """
        limit = min(batch, self._limit("listed"))
        pages = self._pages({"filter": filter_json(filter), "limit": limit})
        return (listed_document(self, row) for page in pages for row in page["documents"])

    def _pages(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        cursor: str | None = None
        while True:
            page = self.call("POST", "/v1/list", body | {"cursor": cursor})
            yield page
            cursor = page["cursor"]
            if cursor is None:
                return

    def commit(self) -> int:
        """Make all changes durable and visible; return the generation.

        Raises ChangesLostError if a change of this client was lost because the server restarted or a commit
        failed: repeat the changes since the last commit that returned. A client without changes commits those
        of others, and gets ServerError (`nothing_waiting`) if there are none.
        """
        tokens = self._uncommitted.tokens()
        return int(self._call_with_tokens("/v1/commit", {}, tokens)["generation"])

    def rollback(self) -> int:
        """Drop all uncommitted changes on the server, those of other clients too; return how many."""
        tokens = self._uncommitted.tokens()
        dropped = int(self.call("POST", "/v1/rollback", {})["dropped"])
        self._uncommitted.forget(tokens)
        return dropped

    def merge(self) -> int:
        """Merge all segments into one, without deleted documents; return the generation.

        Refused with ServerError (`changes_waiting`) while the server has uncommitted changes.
        """
        return int(self.call("POST", "/v1/merge", {})["generation"])

    def _change(self, path: str, body: dict[str, Any], commit: bool) -> dict[str, Any]:
        if commit:
            return self._call_with_tokens(path, {**body, "commit": True}, self._uncommitted.tokens())
        answer = self.call("POST", path, body)
        self._uncommitted.remember(answer["changes"])
        return answer

    def _call_with_tokens(self, path: str, body: dict[str, Any], tokens: list[str]) -> dict[str, Any]:
        """Send a request that commits, with the tokens of this client's earlier changes."""
        try:
            answer = self.call("POST", path, {**body, "changes": tokens} if tokens else body)
        except ChangesLostError:
            self._uncommitted.forget(tokens)  # reported once
            raise
        self._uncommitted.forget(tokens)
        return answer

    def stats(self) -> dict[str, Any]:
        """Return statistics of the index, memory and limits."""
        return self.call("GET", "/v1/stats")

    def indexes(self) -> list[dict[str, Any]]:
        """Return the indexes of the server that the token may read: name, documents, generation and more."""
        return list(self.call("GET", "/v1/indexes")["indexes"])

    # -- HTTP ------------------------------------------------------------------------------------------------

    def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Call any route with a JSON value and return its JSON; errors carry the server's message.

        With an index, `/v1/stats` is sent to `/v1/indexes/NAME/stats`.
        """
        payload = None if body is None else _encode(body)
        if self.index is not None and path.startswith("/v1/") and not path.startswith("/v1/indexes"):
            path = f"/v1/indexes/{self.index}{path[3:]}"
        status, headers, text = self._exchange(method, self._parts.path.rstrip("/") + path, payload)
        try:
            answer = json.loads(text)
        except ValueError:
            raise ServerError(
                status, "request", f"{self.url}: the response is not JSON: is it a citadel server?"
            ) from None
        if status == 200 and isinstance(answer, dict):
            return answer
        raise _error(status, answer, headers.get("retry-after"))

    def close(self) -> None:
        """Close this thread's connection; the next call opens another."""
        if connection := getattr(self._threads, "connection", None):
            connection.close()
            self._threads.connection = None

    def _exchange(
        self, method: str, path: str, payload: bytes | None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request, and once more if the idle connection was closed: all requests are idempotent."""
        reused = getattr(self._threads, "connection", None) is not None
        try:
            return self._once(method, path, payload)
        except _CLOSED as error:
            self.close()
            if not reused:
                raise self._unreachable(error) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._unreachable(error) from error
        try:
            return self._once(method, path, payload)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._unreachable(error) from error

    def _once(self, method: str, path: str, payload: bytes | None) -> tuple[int, Mapping[str, str], bytes]:
        connection = getattr(self._threads, "connection", None) or self._connect()
        connection.request(method, path, payload, self._headers)
        answer = connection.getresponse()
        text = answer.read()
        self._threads.connection = None if answer.will_close else connection
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, text

    def _connect(self) -> http.client.HTTPConnection:
        kind = _Https if self._parts.scheme == "https" else _Http
        self._threads.connection = kind(self._parts.hostname or "", self._parts.port, timeout=self._timeout)
        connection: http.client.HTTPConnection = self._threads.connection
        return connection

    def _unreachable(self, error: Exception) -> ResourceError:
        if isinstance(error, TimeoutError):
            return ResourceError(
                f"{self.url}: no answer within {self._timeout:g} s: raise the client's timeout; "
                "if this was a change it may still be made, so look before you send it again"
            )
        return ResourceError(
            f"{self.url}: no response ({type(error).__name__}: {error}): is the server running?"
        )

    def _search(self, body: dict[str, Any]) -> RemoteHits:
        answer = self.call("POST", "/v1/search", body)
        return RemoteHits(self, answer, answer, body["offset"], answer["dot_products"])

    def _batch(self, queries: list[dict[str, Any]], options: dict[str, Any]) -> Ranking:
        ids: list[str] = []
        hits: list[RemoteHits] = []
        for part in self._chunks(queries, options["k"]):
            answer = self.call("POST", "/v1/search/batch", {**options, "queries": part})
            for result in answer["results"]:
                ids.append(result["query_id"])
                hits.append(RemoteHits(self, result, answer, options["offset"]))
        return Ranking(tuple(ids), tuple(hits))

    def _chunks(self, queries: list[dict[str, Any]], k: int) -> Iterator[list[dict[str, Any]]]:
        """Yield as many queries at a time as the server accepts."""
        if not queries:
            return
        count = max(min(self._limit("batch"), self._limit("hits") // max(k, 1)), 1)
        for start in range(0, len(queries), count):
            yield queries[start : start + count]

    def _limit(self, name: str) -> int:
        """A limit of the server; they are fetched once."""
        if self._limits is None:
            self._limits = self.stats()["server"]["limits"]
        return self._limits[name]


def _parts(documents: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Documents in parts that a server encodes well within its deadline; at least one part."""
    part: list[Mapping[str, Any]] = []
    size = 0
    for document in documents:
        part.append(document)
        size += len(str(document.get("text", ""))) + len(str(document.get("title", "")))
        if size >= _CHARACTERS_PER_REQUEST or len(part) == _DOCUMENTS_PER_REQUEST:
            yield part
            part, size = [], 0
    if part or not documents:
        yield part


def _restore(
    kind: type[Client], url: str, token: str | None, timeout: float, index: str | None = None
) -> Client:
    """Restore a pickled Client."""
    return kind(url, token=token, timeout=timeout, index=index)


def _options(
    k: int,
    mode: str,
    tau: float | None,
    documents: bool,
    filter: GivenFilter | None,
    offset: int,
    min_score: float | None,
    group_by: str | None,
    ef: int | None,
    effort: float | None,
) -> dict[str, Any]:
    """The options of a search as JSON; without an effort, also older servers understand them."""
    page = {"k": k, "offset": offset, "min_score": min_score, "group_by": group_by}
    options = {"semantic_mode": mode, "ef": ef, "tau": tau, "documents": documents}
    options |= {} if effort is None else {"effort": effort}
    return page | options | {"filter": filter_json(filter)}


def _mode_options(mode: str, fusion: str | None, weights: Sequence[float] | None) -> dict[str, Any]:
    """The mode of a search as JSON; nothing for the default, which older servers know, too."""
    if (mode, fusion, weights) == ("model", None, None):
        return {}
    return {"mode": mode, "fusion": fusion, "weights": None if weights is None else list(weights)}


def _with_id(fields: Mapping[str, Any], new_id: Callable[[], str]) -> Mapping[str, Any]:
    return fields if "id" in fields or "_id" in fields else {"id": new_id(), **fields}


def _encode(body: Any) -> bytes:
    """A request body; dates, UUIDs and numpy values are sent as `Index.add` stores them."""
    try:
        return json.dumps(body, allow_nan=False, default=json_default).encode()
    except (TypeError, ValueError, RecursionError) as error:  # NaN, a name that is no string, a cycle
        raise InputError(f"the request cannot be written as JSON ({error}): correct its values") from None


def _error(status: int, answer: Any, retry_after: str | None) -> Exception:
    """Convert an error response to the exception the library raises for it."""
    detail = answer.get("error") if isinstance(answer, dict) else None
    code, message = (
        (detail["code"], detail["message"]) if detail else ("request", f"the server returned status {status}")
    )
    if code == "corrupt":
        return CorruptIndexError(*[*message.split("; ")[0].split(": ", 2), "", ""][:3])
    if code == "filter":
        return FilterError(message.removeprefix("filter: "))
    if kind := _EXCEPTIONS.get(code):
        return kind(message)
    if code == "lost":
        return ChangesLostError(status, code, message)
    seconds = int(retry_after) if retry_after and retry_after.isdigit() else None
    return ServerError(status, code, message, seconds)


def _as_lists(**arrays: Any) -> dict[str, Any]:
    """Convert arrays to lists.

    >>> import numpy as np
    >>> _as_lists(keys=np.array([7], np.uint32), weights=None)
    {'keys': [7], 'weights': None}
    """
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in arrays.items()}
