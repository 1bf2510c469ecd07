"""Build missing graphs with a progress bar."""

from __future__ import annotations

from citadel.api import Index
from citadel.progress import Progress
from citadel.settings import GRAPH_FLOOR


def build_graphs(index: Index, min_documents: int = GRAPH_FLOOR) -> int:
    """Build the graphs that large segments lack; return their number."""
    with Progress("Linking documents", "documents") as bar:
        return index.optimize(min_documents=min_documents, progress=lambda _, done: bar(done))


def lacks_graphs(index: Index, min_documents: int = GRAPH_FLOOR) -> bool:
    """Whether `build_graphs` has something to do; does not take the lock."""
    from citadel.index.graph_build import can_have_graph

    return any(
        segment.passages >= min_documents and can_have_graph(segment) and not segment.record.graph_file
        for segment in index.refresh().searcher(threads=1).snapshot.segments
    )
