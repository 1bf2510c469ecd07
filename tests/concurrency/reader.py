"""Reads an index until its input is closed; each ranking it saw is one line on its output, each only once."""

from __future__ import annotations

import json
import select
import sys

from citadel import Index
from tests.support.contents import ranking_of


def look(index: Index) -> str:
    """The generation a reader has and the ranking it found, with texts read from the documents."""
    snapshot = index._snapshot
    hits = index.searcher(threads=1).search("rome", k=3)
    texts = [[hit.id, hit.text] for hit in hits]
    return json.dumps([snapshot.manifest.generation, ranking_of(index), texts])


def main(folder: str) -> None:
    index, seen, reads = Index.open(folder), set[str](), 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        if reads % 5 == 0:
            index = Index.open(folder)  # from nothing, as well as from the generation before
        seen.add(look(index.refresh()))
        reads += 1
    print(reads)
    print("\n".join(seen))


if __name__ == "__main__":
    main(sys.argv[1])
