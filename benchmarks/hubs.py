"""Short queries that boilerplate wins, keys of function words, and balance of lists, per collection.

    .venv/bin/python benchmarks/hubs.py [--model models/small-en] [--keep FOLDER]

Each collection of CITADEL_DATA, and a sample of the training passages, is indexed with 27 stubs, most of
which the model was not refined with. Queries of one and two words are drawn from the words of the collection
that no stub has. `--keep` keeps the indexes for another call.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import os
import random
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import citadel
from citadel.encode.encoder import Encoder
from citadel.index.stats import list_lengths
from citadel.text.corpus import read_corpus
from citadel.text.function_words import FUNCTION_WORDS

DATA = os.environ.get("CITADEL_DATA", "data")
COLLECTIONS = ("cranfield", "scifact", "vaswani")
TRAINING = "training passages"
PASSAGES = 6_000  # of the training passages
ONE_WORD, TWO_WORDS, QUERIES = 400, 200, 400
STUBS = {
    "headings": "See also|Introduction|References|Table of contents|Click here|Contributors|Abbreviations|"
    "Revision history|Disambiguation",
    "notices": "Copyright 2020 All rights reserved|Javascript is disabled in your browser|"
    "Share on social media|"
    "This entry has not been translated|Your session has expired|Sorry, an unexpected problem occurred|"
    "Reproduced with permission|Subscribers only|Printed from the web",
    "signs and numbers": "1|...|N/A|42|2017-03-05|?!|TBD|xxx|IV",
}


class Keys(NamedTuple):
    """Shares of function words in queries by the kind of their key."""

    none: float
    own: float
    other: float  # another function word, or a piece of a word that contains this one
    content: float  # a content word


class Row(NamedTuple):
    """Figures of one collection."""

    collection: str
    one_word: float  # share of queries whose first hit is a stub
    two_words: float
    keys: Keys
    postings: float  # per document
    largest: float  # share of all postings in the largest list
    top_lists: float  # share of all postings in the largest 1 % of the lists


def main() -> None:
    """Measure every collection and print one table."""
    parser = argparse.ArgumentParser(description="Stubs that win short queries, keys of function words.")
    parser.add_argument("--model", default="models/small-en")
    parser.add_argument("--keep", help="folder for the indexes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        _print([measure(name, arguments.model, folder) for name in (*COLLECTIONS, TRAINING)], arguments.model)


def measure(collection: str, model: str, folder: Path) -> Row:
    """Index a collection with the stubs, if that was not done before, and search it."""
    index = citadel.Index.open_or_create(folder / collection.replace(" ", "-"), model=model)
    if not len(index):
        index.add(itertools.chain(documents(collection), stubs()))
        index.commit()
    words = vocabulary(text["text"] for text in documents(collection))
    one, two = queries(words, ONE_WORD, 1), queries(words, TWO_WORDS, 2)
    sizes = np.sort(np.array(list(list_lengths(index._snapshot).values())))[::-1]
    top = max(1, len(sizes) // 100)
    return Row(
        collection,
        won(index, one),
        won(index, two),
        function_word_keys(model, list(texts_of_queries(collection))),
        float(sizes.sum() / len(index)),
        float(sizes[0] / sizes.sum()),
        float(sizes[:top].sum() / sizes.sum()),
    )


def documents(collection: str) -> Iterator[dict[str, Any]]:
    """Documents of a collection, as the index takes them."""
    if collection != TRAINING:
        with read_corpus(os.path.join(DATA, "eval", collection, "corpus.jsonl")) as corpus:
            for document, _ in corpus:
                yield {"id": document.id, "title": document.title, "text": document.text}
        return
    with lzma.open(os.path.join(DATA, "train", "passages.jsonl.xz"), "rt", encoding="utf-8") as file:
        rows = [line for line in file if '"source": "openstax"' not in line]
    for row in map(json.loads, random.Random(22).sample(rows, PASSAGES)):
        yield {"id": row["id"], "title": row["title"], "text": row["text"]}


def stubs() -> Iterator[dict[str, Any]]:
    """The stubs as documents."""
    for kind, texts in STUBS.items():
        for text in texts.split("|"):
            yield {"id": f"stub {kind}: {text}", "text": text}


def vocabulary(texts: Iterable[str]) -> list[str]:
    """The distinct words of a collection that no stub contains."""
    words = {word.lower() for text in texts for word in re.findall(r"[^\W\d_]{2,}", text)}
    for text in STUBS.values():
        words -= {word.lower() for word in re.findall(r"\w+", text)}
    return sorted(words)


def queries(words: list[str], count: int, size: int) -> list[str]:
    """Queries of some words, the same at every call."""
    draw = random.Random(size)
    return [" ".join(draw.sample(words, size)) for _ in range(count)]


def won(index: citadel.Index, texts: list[str]) -> float:
    """Share of the queries whose first hit is a stub."""
    rankings = index.searcher().search_batch(texts, k=1, semantic_mode="exact")
    return sum(hits[0].id.startswith("stub ") for _, hits in rankings if len(hits)) / len(texts)


def texts_of_queries(collection: str) -> Iterator[str]:
    """Queries of a collection; of the training pairs, questions."""
    if collection != TRAINING:
        path = os.path.join(DATA, "eval", collection, "queries.jsonl")
        yield from (json.loads(line)["text"] for line in Path(path).read_text("utf-8").splitlines()[:QUERIES])
        return
    with lzma.open(os.path.join(DATA, "train", "pairs.jsonl.xz"), "rt", encoding="utf-8") as file:
        questions = (pair["query"] for pair in map(json.loads, file) if pair["kind"] == "question")
        yield from itertools.islice(questions, QUERIES)


def function_word_keys(model: str, texts: list[str]) -> Keys:
    """What kinds of keys the function words of some queries have."""
    encoder = Encoder(model)
    counts: dict[str, int] = dict.fromkeys(Keys._fields, 0)
    for text, routed in zip(encoder.tokenizer.queries(texts), encoder.encode_queries(texts), strict=True):
        positions = np.flatnonzero(text.routed)[[] if routed.tokens is None else routed.tokens.astype(int)]
        keys = dict(zip(positions.tolist(), routed.keys.tolist(), strict=True))
        for position, id in enumerate(text.ids.tolist()):
            word = encoder.tokenizer.token(id)
            if word in FUNCTION_WORDS:
                key = keys.get(position)
                counts[_kind(word, None if key is None else encoder.tokenizer.token(key))] += 1
    total = max(1, sum(counts.values()))
    return Keys(**{name: count / total for name, count in counts.items()})


def _kind(word: str, key: str | None) -> str:
    if key is None:
        return "none"
    if key == word:
        return "own"
    return "other" if key.removeprefix("##") in FUNCTION_WORDS or word in key else "content"


def _print(rows: list[Row], model: str) -> None:
    print(f"{model}: share of queries won by a stub; keys of function words in queries; lists\n")
    print(
        "| collection | one word | two words | no key | own | function word | content word | postings per ",
        end="",
    )
    print("document | largest list | largest 1 % |\n| --- |" + " ---: |" * 9)
    for row in rows:
        figures = (row.one_word, row.two_words, *row.keys)
        shown = [row.collection, *(f"{value:.3f}" for value in figures), f"{row.postings:.1f}"]
        print("| " + " | ".join([*shown, f"{row.largest:.4f}", f"{row.top_lists:.3f}"]) + " |")


if __name__ == "__main__":
    main()
