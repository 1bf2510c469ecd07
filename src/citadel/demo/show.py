"""What the demonstration shows: a progress bar, then three questions with their answers."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from citadel.demo.passages import passages
from citadel.text.analyser import get_analyser
from citadel.text.highlight import snippet
from citadel.types import Document, Hit

if TYPE_CHECKING:
    from citadel import Index

QUERIES = (
    "run a command and capture its output",
    "how to copy a whole directory tree",
    "find the longest matching lines of two texts",
)
HITS = 3
SNIPPET = 200  # characters
ANALYSER = "english"


class Searcher(Protocol):
    """The part of a searcher that the demonstration needs."""

    def search(self, query: str, k: int) -> Sequence[Hit]:
        """The best k hits."""


def run_demo(folder: Path | None = None, console: Console | None = None) -> None:
    """Index the documentation of this Python's library, in `folder` or a temporary one, and answer three questions."""
    from citadel import Index  # here, because citadel/__init__ loads the whole engine

    console = console or Console(highlight=False)
    with (
        tempfile.TemporaryDirectory(prefix="citadel-demo-") as scratch,
        Index.create(folder or Path(scratch) / "index") as index,
    ):
        build(index, console)
        searcher = index.searcher()
        for query in QUERIES:
            answer(searcher, query, console)


def build(index: Index, console: Console) -> None:
    """Add all passages and commit, under a progress bar."""
    documents = list(passages())
    start = time.perf_counter()
    index.add(with_progress(documents))
    index.commit()
    seconds = time.perf_counter() - start
    console.print(f"{len(documents):,} passages of Python's own documentation indexed in {seconds:.2f} s.")


def with_progress(documents: Sequence[Document]) -> Iterator[Document]:
    """The documents, with a bar on standard error that follows them."""
    columns = (TextColumn("Indexing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield from progress.track(documents)


def answer(searcher: Searcher, query: str, console: Console) -> None:
    """One question with its best hits and the time the search took."""
    start = time.perf_counter()
    hits = searcher.search(query, k=HITS)
    milliseconds = (time.perf_counter() - start) * 1000
    console.print()
    console.print(Text.assemble(("? ", "bold cyan"), (query, "bold"), (f"   {milliseconds:.2f} ms", "dim")))
    for hit in hits:
        show_hit(hit, query, console)


def show_hit(hit: Hit, query: str, console: Console) -> None:
    """Rank, score and title on one line, then the part of the text that matches."""
    title = Text.assemble((f"{hit.rank}. ", "cyan"), (f"{hit.score:5.2f}  ", "dim"), (hit.title, "bold green"))
    console.print(title, overflow="ellipsis", no_wrap=True)
    console.print(Padding(excerpt(hit.text, query, console.color_system is not None), (0, 0, 0, 3), expand=False))


def excerpt(text: str, query: str, colour: bool) -> Text:
    """The best matching part of a text on one line, with marks where it was cut."""
    analyser = get_analyser(ANALYSER)
    line = " ".join(text.split())
    found = snippet(line, analyser.terms(query), analyser, SNIPPET)
    before, after = "… " if found.start else "", " …" if found.end < len(line) else ""
    return Text.assemble(before, highlighted(found.text, found.spans, colour), after)


def highlighted(text: str, spans: Iterable[tuple[int, int]], colour: bool) -> Text:
    """The text with its matched words in colour, or between asterisks where there is no colour.

    >>> highlighted("a fast list", [(2, 6)], colour=False).plain
    'a *fast* list'
    """
    shown = Text()
    end = 0
    for start, stop in spans:
        shown.append(text[end:start])
        shown.append(text[start:stop] if colour else f"*{text[start:stop]}*", style="bold yellow")
        end = stop
    return shown.append(text[end:])
