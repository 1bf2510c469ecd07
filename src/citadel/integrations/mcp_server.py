"""MCP: a server whose tools search an index, for language models and their clients."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Annotated, Any, ParamSpec, TypeVar

from citadel import __version__
from citadel.errors import CitadelError, InputError
from citadel.explain.result import Explanation
from citadel.integrations import MissingPackageError
from citadel.integrations.mcp_results import (
    AddResult,
    DeleteResult,
    ExplainResult,
    GetResult,
    HitResult,
    MatchResult,
    NewDocument,
    SearchResult,
    StatsResult,
)
from citadel.integrations.store import AnyIndex, Store
from citadel.types import Hit

try:
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp_types import ToolAnnotations
    from pydantic import Field
except ImportError as error:
    raise MissingPackageError("mcp", error) from None

P = ParamSpec("P")
T = TypeVar("T")

MAX_HITS = 100  # per call; a client reads every hit with its model
MAX_CHARACTERS = 100_000  # of text per hit or per `get`
MAX_QUERY = 4096  # characters, as in `citadel serve`
MAX_DOCUMENTS = 1000  # added or deleted per call
_MAX_FIELDS = 40  # metadata fields named in the instructions

Query = Annotated[str, Field(max_length=MAX_QUERY, description="What to search for, in plain words.")]
Filter = Annotated[
    dict[str, Any] | None,
    Field(
        description='Only documents whose metadata match, such as {"year": {"$gte": 1900}}; operators: $eq, '
        "$ne, $gt, $gte, $lt, $lte, $in, $nin, $contains, $exists, $and, $or, $not. `stats` lists the fields."
    ),
]
DocumentId = Annotated[str, Field(description="The id of a document, as in a hit.")]


def make_server(index: AnyIndex, *, write: bool = False) -> MCPServer[Any]:
    """A server with the tools search, get, explain and stats; with `write` also add and delete.

    >>> import asyncio, citadel, tempfile
    >>> index = citadel.Index.create(tempfile.mkdtemp(), model="bm25")
    >>> server = make_server(index, write=True)
    >>> [tool.name for tool in asyncio.run(server.list_tools())]
    ['search', 'get', 'explain', 'stats', 'add', 'delete']
    """
    store = Store(index, create=False)
    store.index.require_model()
    tools = IndexTools(store)
    server: MCPServer[Any] = MCPServer(
        "citadel", version=__version__, instructions=_instructions(store), log_level="WARNING"
    )
    for read in (tools.search, tools.get, tools.explain, tools.stats):
        _add_tool(server, read, ToolAnnotations(read_only_hint=True))
    for change in (tools.add, tools.delete) if write else ():
        # deleting twice changes nothing more; adding documents without ids does
        repeatable = change == tools.delete
        hints = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=repeatable)
        _add_tool(server, change, hints)
    return server


def _add_tool(server: MCPServer[Any], tool: Callable[..., Any], hints: ToolAnnotations) -> None:
    """Add a method as a tool, described by its docstring."""
    description = " ".join((tool.__doc__ or "").split())
    server.add_tool(_with_tool_errors(tool), description=description, annotations=hints)


class IndexTools:
    """The tools; the docstring of each is its description for the client's model."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def search(
        self,
        query: Query,
        k: Annotated[int, Field(ge=1, le=MAX_HITS, description="Hits to return.")] = 10,
        filter: Filter = None,
        offset: Annotated[int, Field(ge=0, le=10_000, description="Leave out the first N hits.")] = 0,
        group_by: Annotated[
            str | None, Field(description="Return the best document of each value of this metadata field.")
        ] = None,
        min_relevance: Annotated[
            float | None, Field(ge=0, le=1, description="Leave out hits with a lower relevance.")
        ] = None,
        characters: Annotated[
            int, Field(ge=0, le=MAX_CHARACTERS, description="Length limit of the text of a hit.")
        ] = 2000,
    ) -> SearchResult:
        """Search the documents. Returns the best hits with id, score and text: of a long document the passage
        that matches best. `get` returns the rest of a document."""
        hits = self._store.search(
            query, k, filter, offset=offset, group_by=group_by, min_relevance=min_relevance
        )
        return SearchResult(hits=[_hit(hit, characters) for hit in hits], query_cut=hits.query_cut)

    def get(
        self,
        id: DocumentId,
        start: Annotated[int, Field(ge=0, description="The first character of the text to return.")] = 0,
        characters: Annotated[
            int, Field(ge=1, le=MAX_CHARACTERS, description="Length limit of the text.")
        ] = 20_000,
    ) -> GetResult:
        """Return one document with its text and metadata; a long text in parts, from `start`."""
        document = next(iter(self._store.get([id])), None)
        if document is None:
            raise InputError(f"there is no document {id!r}: take an id from a hit of search")
        end = start + characters
        return GetResult(
            id=document.id,
            title=document.title,
            text=document.text[start:end],
            metadata=dict(document.metadata),
            total_characters=len(document.text),
            next_start=end if end < len(document.text) else None,
        )

    def explain(self, query: Query, id: DocumentId) -> ExplainResult:
        """Explain why a document matches a query: which words of both met, and what each added."""
        return _explanation(self._store.index.refresh().searcher().explain(query, id))

    def stats(self) -> StatsResult:
        """Describe the index: number of documents, router, metadata fields with their types, sizes."""
        index = self._store.index.refresh()
        return StatsResult(
            documents=len(index),
            generation=index.generation,
            router=index.settings.router,
            fields=index.fields(),
            figures=index.stats(),
        )

    def add(
        self,
        documents: Annotated[
            list[NewDocument], Field(min_length=1, max_length=MAX_DOCUMENTS, description="The documents.")
        ],
    ) -> AddResult:
        """Add documents, durably; a known id replaces the document. All are added, or none."""
        given = [document.model_dump(exclude_none=True) for document in documents]
        with self._store.lock:
            added = self._store.write(given)
            self._store.index.rollback()  # releases the lock for other writers
        return AddResult(
            added=int(added),
            generated_ids=added.generated_ids,
            cut=added.cut,
            generation=self._store.index.generation,
        )

    def delete(
        self,
        ids: Annotated[
            list[str], Field(min_length=1, max_length=MAX_DOCUMENTS, description="Ids of documents.")
        ],
    ) -> DeleteResult:
        """Delete documents by id, durably; unknown ids are ignored."""
        with self._store.lock:
            deleted = self._store.delete(ids)
            self._store.index.rollback()  # releases the lock for other writers
        return DeleteResult(deleted=deleted, generation=self._store.index.generation)


def _with_tool_errors(tool: Callable[P, T]) -> Callable[P, T]:
    """Turn our errors into messages for the client; others are logged and hidden by the SDK."""

    @functools.wraps(tool)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return tool(*args, **kwargs)
        except CitadelError as error:
            raise ToolError(str(error)) from error

    return call


def _instructions(store: Store) -> str:
    """What a client's model should know before its first call."""
    fields = store.index.fields()
    named = ", ".join(f"{name} ({kind})" for name, kind in itertools.islice(fields.items(), _MAX_FIELDS))
    more = f" and {len(fields) - _MAX_FIELDS} more" if len(fields) > _MAX_FIELDS else ""
    return (
        f"Searches an index of {len(store.index):,} documents. Cite documents by id. "
        f"Metadata fields for filters: {named + more or 'none'}."
    )


def _hit(hit: Hit, characters: int) -> HitResult:
    passage = hit.passage
    return HitResult(
        rank=hit.rank,
        id=hit.id,
        score=hit.score,
        relevance=hit.relevance,
        title=hit.title,
        text=passage.text[:characters],
        text_start=passage.start,
        is_whole=len(hit.text) == len(passage.text) <= characters,
        metadata=dict(hit.metadata),
    )


def _explanation(explanation: Explanation) -> ExplainResult:
    matched = sorted((match for match in explanation.matches if match.gain), key=lambda match: -match.gain)
    semantic = explanation.semantic
    return ExplainResult(
        id=explanation.id,
        title=explanation.title,
        score=explanation.score,
        matches=[
            MatchResult(
                query=explanation.query_words(match),
                document=explanation.document_words(match.postings[0]),
                gain=match.gain,
                share=match.share,
            )
            for match in matched
        ],
        unmatched=[explanation.query_words(match) for match in explanation.matches if not match.is_matched],
        semantic_gain=None if semantic is None else semantic.gain,
        semantic_share=None if semantic is None else semantic.share,
        snippet=explanation.snippet.text,
    )
