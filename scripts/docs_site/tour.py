"""The tour "why this document": explanations of a few searches, made by citadel itself."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import citadel
from citadel.explain.html import match_html, text_html

DOCUMENTS = [
    {
        "id": "relativity",
        "title": "Relativity",
        "text": "Einstein proposed that time depends on motion: a moving clock ticks more slowly.",
    },
    {
        "id": "evolution",
        "title": "Evolution",
        "text": "Darwin proposed natural selection: those that fit their surroundings have more offspring.",
    },
    {
        "id": "heart",
        "title": "Heart attack",
        "text": "A blocked coronary artery starves the heart muscle of oxygen. Surgeons reopen it.",
    },
    {
        "id": "bread",
        "title": "Bread",
        "text": "Knead the dough, let it rise for an hour, then bake it until the crust is brown.",
    },
    {
        "id": "mercury",
        "title": "Mercury",
        "text": "The orbit of Mercury turns a little further each century than Newton's law allows.",
    },
]
STEPS = [
    (
        "who proposed relativity",
        "The same words",
        "Two texts contain *proposed*, one is about relativity. The bar is the score, one colour per key; "
        "the table lists what each query token added, and the token of the document it matched.",
    ),
    (
        "myocardial infarction",
        "Other words",
        "No word of the query occurs in the document. Word pieces are routed to keys of related words, "
        "and most of the score is the product of the two semantic vectors.",
    ),
    (
        "how long must dough rest before baking",
        "A question",
        "Each word of the question is compared only with the tokens under its own keys, so every match has a "
        "position in the text that can be marked.",
    ),
]


def pages() -> Iterator[tuple[str, str]]:
    """Path and content of each file: tour.md, and one HTML page per explanation."""
    with tempfile.TemporaryDirectory() as folder, citadel.Index.create(folder) as index:
        index.add(DOCUMENTS)
        searcher = index.commit().searcher()
        parts = ["# Why this document", _INTRODUCTION]
        for number, (query, title, text) in enumerate(STEPS, 1):
            hits = searcher.search(query, k=3)
            parts += [
                f"## {number}. {title}: “{query}”",
                text,
                _table(hits),
                _frame(f"match-{number}", hits[0].id),
            ]
            yield f"tour/match-{number}.html", match_html(searcher.explain(query, hits[0].id))
        yield "tour/keys.html", text_html(searcher.explain_text(str(DOCUMENTS[2]["text"])))
    parts += ["## The keys of a text", _KEYS, _frame("keys", "the text")]
    yield "tour.md", "\n\n".join(parts) + "\n"


_INTRODUCTION = (
    "Five documents, three searches, and for each of them the explanation of the best hit as "
    "`citadel explain --html` writes it. The gains add up to the score of the search. "
    "[Explanations](how-it-works/explain.md) says how they are computed; "
    "[the web page](how-it-works/web-page.md) shows the same beside each hit."
)
_KEYS = (
    "Documents are routed too. This is what is stored for the document about the heart: each token with its "
    "keys, the darker the heavier. `citadel explain --text` prints the same for any text."
)


def _table(hits: citadel.Hits) -> str:
    rows = [f"| {hit.rank} | {hit.id} | {hit.score:.2f} |" for hit in hits]
    return "\n".join(["| rank | document | score |", "| ---: | --- | ---: |", *rows])


def _frame(name: str, title: str) -> str:
    return (
        f'<iframe class="tour" src="tour/{name}.html" title="Explanation of {title}"></iframe>\n\n'
        f"[Open this explanation alone](tour/{name}.html)."
    )
