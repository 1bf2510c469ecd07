"""Read an index until stdin is closed, then print each distinct ranking on one line."""

from __future__ import annotations

import json
import select
import sys

from citadel import Index
from tests.support.contents import ranking_of


def observe(index: Index) -> str:
    """The generation, ranking and texts that a reader sees, as one line."""
    snapshot = index._snapshot
    hits = index.searcher(threads=1).search("rome", k=3)
    texts = [[hit.id, hit.text] for hit in hits]
    return json.dumps([snapshot.manifest.generation, ranking_of(index), texts])


def main(folder: str) -> None:
    index, rankings, reads = Index.open(folder), set[str](), 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        if reads % 5 == 0:
            index = Index.open(folder)  # besides refreshing from the previous generation
        rankings.add(observe(index.refresh()))
        reads += 1
    print(reads)
    print("\n".join(rankings))


if __name__ == "__main__":
    main(sys.argv[1])
