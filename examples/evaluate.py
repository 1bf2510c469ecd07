"""Compare the default model with BM25 on judged queries. Needs the extra [eval]."""

import tempfile

import citadel
from citadel.eval.measures import evaluate

DOCUMENTS = [
    {"id": "d1", "text": "Einstein proposed that time depends on motion."},
    {"id": "d2", "text": "Darwin explained species by natural selection."},
    {"id": "d3", "text": "A blocked coronary artery causes a heart attack."},
    {"id": "d4", "text": "Knead the dough and let it rise for an hour."},
]
QUERIES = {"q1": "time and motion", "q2": "myocardial infarction", "q3": "how to bake bread"}
QRELS = {"q1": {"d1": 1}, "q2": {"d3": 1}, "q3": {"d4": 1}}


def measure(folder: str, model: str | None) -> dict[str, float]:
    with citadel.Index.create(folder, model=model, overwrite=True) as index:
        index.add(DOCUMENTS)
        index.commit()
        ranking = index.searcher().search_batch(QUERIES, k=10)
    return evaluate(ranking, QRELS, "nDCG@10 RR@10")


def main(folder: str) -> None:
    for name, model in (("small-en", None), ("bm25", "bm25")):
        values = measure(f"{folder}/{name}", model)
        print(name, *(f"{measure} {value:.3f}" for measure, value in values.items()))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(scratch)
