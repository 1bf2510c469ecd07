"""Index vectors that another model made: per document the keys, weights and vectors of its tokens."""

import tempfile

import numpy as np

import citadel

NUM_DOCUMENTS, TOKENS, DIMENSION, NUM_KEYS = 100, 8, 16, 50


def main(folder: str) -> None:
    random = np.random.default_rng(1)
    fields = {"lexical": citadel.Field(DIMENSION, "int8"), "semantic": citadel.Field(4, "int8")}
    with citadel.Index.create(folder, fields=fields, fingerprint="my-model-1", overwrite=True) as index:
        documents = [
            {
                "id": f"d{number}",
                "keys": random.integers(0, NUM_KEYS, TOKENS).astype(np.uint32),  # [P]
                "weights": random.random(TOKENS).astype(np.float32),  # [P]
                "vectors": random.normal(size=(TOKENS, DIMENSION)).astype(np.float32),  # [P, d]
                "semantic": random.normal(size=4).astype(np.float32),  # [s]
            }
            for number in range(NUM_DOCUMENTS)
        ]
        index.add_vectors(documents)
        index.commit()
        query = documents[42]
        parts = (query["keys"], query["weights"], query["vectors"], query["semantic"])
        hits = index.searcher().search_vectors(*parts, k=3)
        print([hit.id for hit in hits])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(f"{scratch}/idx")
