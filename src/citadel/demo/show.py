"""What the demonstration shows: a progress bar, then plain-language questions, answered by meaning and by BM25."""

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
WIDE = 100  # columns: from here on the two answers stand side by side
ANALYSER = "english"


class Searcher(Protocol):
    """The part of a searcher that the demonstration needs."""

    def search(self, query: str, k: int) -> Sequence[Hit]:
        """The best k hits."""

    def explain(self, query: str, id: str) -> Explanation:
        """Why one of them is there."""


def run_demo(folder: Path | None = None, console: Console | None = None, limit: int = MAX_PASSAGES) -> None:
    """Index the documentation of this Python's library, in `folder` or a temporary one, and answer three questions."""
    from citadel import Index  # here, because citadel/__init__ loads the whole engine
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
    """What a model is called before people.

    >>> label("default"), label("bm25")
    ('citadel', 'bm25')
    """
    return "citadel" if name == "default" else name


def answer(searchers: Mapping[str, Searcher], query: str, console: Console) -> None:
    """One question, answered by each searcher: side by side where there is room, else one below the other."""
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
    """The best hits of one searcher under its name and the time the search took."""
    start = time.perf_counter()
    hits = searcher.search(query, k=HITS)
    milliseconds = (time.perf_counter() - start) * 1000
    colour = console.color_system is not None
    shown = [part for hit in hits for part in show_hit(hit, searcher.explain(query, hit.id), query, colour)]
    return Group(Text.assemble((label(name), "bold magenta"), (f"   {milliseconds:.1f} ms", "dim")), *shown)


def show_hit(hit: Hit, why: Explanation, query: str, colour: bool) -> Iterator[RenderableType]:
    """Rank, score and title on one line, then the part of the text that matches, then the words that met."""
    title = Text.assemble((f"{hit.rank}. ", "cyan"), (f"{hit.score:5.2f}  ", "dim"), (hit.title, "bold green"))
    title.no_wrap, title.overflow = True, "ellipsis"
    yield title
    yield Padding(excerpt(hit.text, query, colour), (0, 0, 0, 3), expand=False)
    if reasons := " · ".join(why_words(why)):
        yield Padding(Text(reasons, "dim"), (0, 0, 0, 3), expand=False)


def why_words(why: Explanation) -> list[str]:
    """What met what, the largest gains first: `newest → recent` where another word was met, else the word alone."""
    if why.router == "bm25":
        return []  # its words are marked in the text already
    best = sorted((match for match in why.matches if match.gain > 0), key=lambda match: -match.gain)
    pairs = ((why.asked(match), why.met(match.postings[0]) or match.label) for match in best)
    found = dict.fromkeys(asked if asked == met else f"{asked} → {met}" for asked, met in pairs)
    return list(found)[:REASONS]


def excerpt(text: str, query: str, colour: bool) -> Text:
    """The best matching part of a text on one line, with marks where it was cut."""
    analyser = get_analyser(ANALYSER)
    line = " ".join(text.split())
    found = term_snippet(line, analyser.terms(query), analyser, SNIPPET)
    before, after = "… " if found.start else "", " …" if found.end < len(line) else ""
    return Text.assemble(before, highlighted(found.text, found.spans, colour), after)


def highlighted(text: str, spans: Iterable[Span], colour: bool) -> Text:
    """The text with its matched words in colour, or between asterisks where there is no colour.

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
