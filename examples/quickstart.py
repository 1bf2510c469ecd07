"""Index a few documents, search them, replace one and search again."""

import tempfile

import citadel

DOCUMENTS: list[dict[str, object]] = [
    {"id": "d1", "title": "Relativity", "text": "Einstein: time depends on motion.", "year": 1905},
    {"id": "d2", "title": "Evolution", "text": "Darwin proposed natural selection.", "year": 1859},
    {"id": "d3", "title": "Heart", "text": "A blocked coronary artery causes a heart attack."},
]


def main(folder: str) -> None:
    with citadel.Index.create(folder, overwrite=True) as index:
        index.add(DOCUMENTS)
        index.commit()  # durable and visible
        for query in ("who proposed relativity", "myocardial infarction"):
            for hit in index.searcher().search(query, k=1):
                print(f"{query} -> {hit.id} {hit.title} {hit.score:.2f}")

        index.add([{"id": "d2", "title": "Evolution", "text": "Wallace described natural selection."}])
        index.delete(["d3"])
        index.commit()
        hit = index.searcher().search("who discovered evolution", k=1)[0]
        print(f"{len(index)} documents, now: {hit.text}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(f"{scratch}/idx")
