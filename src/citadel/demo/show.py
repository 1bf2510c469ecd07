"""Run the demo: index with a progress bar, then answer questions with the model and with BM25."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from citadel.demo.passages import MAX_PASSAGES, passages
from citadel.progress import Progress
from citadel.text.analyser import get_analyser
from citadel.text.snippet import Span, term_snippet
from citadel.types import Document, Hit

if TYPE_CHECKING:
    from citadel import Index
    from citadel.explain.result import Explanation

QUERIES = (
    "run a command and capture its output",
    "keep only the newest items in a list of fixed size",
    "find the longest matching lines of two texts",
)
HITS = 5
REASONS = 4
SNIPPET = 110  # characters
WIDE = 100  # columns; wide enough for two answers side by side
ANALYSER = "english"


class Searcher(Protocol):
    """The part of a searcher that the demo needs."""

    def search(self, query: str, k: int) -> Sequence[Hit]:
        """Return the best k hits."""

    def explain(self, query: str, id: str) -> Explanation:
        """Explain the score of a document."""


def run_demo(folder: Path | None = None, console: Console | None = None, limit: int = MAX_PASSAGES) -> None:
    """Index Python's documentation, in `folder` or a temporary folder, and answer three questions."""
    from citadel import Index  # slow: loads the engine
    from citadel.encode.locate import default_model

    console = console or Console(highlight=False)
    names = ["default", "bm25"] if default_model() else ["bm25"]
    with tempfile.TemporaryDirectory(prefix="citadel-demo-") as scratch:
        documents = list(passages(limit))
        searchers: dict[str, Searcher] = {}
        for name in names:
            with Index.create((folder or Path(scratch)) / name, model=name) as index:
                build(index, documents, name, console)
                searchers[name] = index.searcher()
        for query in QUERIES:
            answer(searchers, query, console)


def build(index: Index, documents: Sequence[Document], name: str, console: Console) -> None:
    """Add all passages and commit, under a progress bar."""
    start = time.perf_counter()
    with Progress(f"Indexing for {label(name)}", "passages", len(documents)) as progress:
        index.add_checked(documents, progress.advance)
        index.commit()
    seconds = time.perf_counter() - start
    what = f"{len(documents):,} passages of Python's own documentation"
    console.print(f"{what} indexed in {seconds:.1f} s ({label(name)}).")


def label(name: str) -> str:
    """Return the display name of a model.

    >>> label("default"), label("bm25")
    ('citadel', 'bm25')
    """
    return "citadel" if name == "default" else name


def answer(searchers: Mapping[str, Searcher], query: str, console: Console) -> None:
    """Print one question and each searcher's answer, side by side if the console is wide enough."""
    answers = [column(name, searcher, query, console) for name, searcher in searchers.items()]
    console.print()
    console.print(Text.assemble(("? ", "bold cyan"), (query, "bold")))
    if console.width < WIDE or len(answers) == 1:
        console.print(*answers, sep="\n")
        return
    table = Table.grid(padding=(0, 3), expand=True)
    for _ in answers:
        table.add_column(ratio=1, no_wrap=False)
    table.add_row(*answers)
    console.print(table)


def column(name: str, searcher: Searcher, query: str, console: Console) -> RenderableType:
    """Render the best hits of one searcher under its name and latency."""
    start = time.perf_counter()
    hits = searcher.search(query, k=HITS)
    milliseconds = (time.perf_counter() - start) * 1000
    colour = console.color_system is not None
    shown = [part for hit in hits for part in show_hit(hit, searcher.explain(query, hit.id), query, colour)]
    return Group(Text.assemble((label(name), "bold magenta"), (f"   {milliseconds:.1f} ms", "dim")), *shown)


def show_hit(hit: Hit, why: Explanation, query: str, colour: bool) -> Iterator[RenderableType]:
    """Render rank, score and title, then a snippet, then the words that matched."""
    title = Text.assemble(
        (f"{hit.rank}. ", "cyan"), (f"{hit.score:5.2f}  ", "dim"), (hit.title, "bold green")
    )
    title.no_wrap, title.overflow = True, "ellipsis"
    yield title
    yield Padding(excerpt(hit.text, query, colour), (0, 0, 0, 3), expand=False)
    if reasons := " · ".join(why_words(why)):
        yield Padding(Text(reasons, "dim"), (0, 0, 0, 3), expand=False)


def why_words(why: Explanation) -> list[str]:
    """List the matches with the largest gains: `newest → recent`, or one word if both are equal."""
    if why.router == "bm25":
        return []  # the snippet already marks them
    best = sorted((match for match in why.matches if match.gain > 0), key=lambda match: -match.gain)
    pairs = ((why.query_words(match), why.document_words(match.postings[0]) or match.label) for match in best)
    labels = (query if query == document else f"{query} → {document}" for query, document in pairs)
    return list(dict.fromkeys(labels))[:REASONS]


def excerpt(text: str, query: str, colour: bool) -> Text:
    """Render the best matching part of a text on one line, with … where it was cut."""
    analyser = get_analyser(ANALYSER)
    line = " ".join(text.split())
    snippet = term_snippet(line, analyser.terms(query), analyser, SNIPPET)
    before, after = "… " if snippet.start else "", " …" if snippet.end < len(line) else ""
    return Text.assemble(before, highlighted(snippet.text, snippet.spans, colour), after)


def highlighted(text: str, spans: Iterable[Span], colour: bool) -> Text:
    """Mark matched words with colour, or with asterisks if there is no colour.

    >>> highlighted("a fast list", [Span(2, 6, 1.0, (0,))], colour=False).plain
    'a *fast* list'
    """
    shown = Text()
    end = 0
    for span in spans:
        word = text[span.start : span.end]
        shown.append(text[end : span.start])
        shown.append(word if colour else f"*{word}*", style="bold yellow")
        end = span.end
    return shown.append(text[end:])
