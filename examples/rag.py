"""Retrieve passages for a language model's prompt, each with the words that made it match."""

import tempfile

import citadel

PASSAGES = [
    {"id": "p1", "text": "The coronary arteries supply the heart. A blocked one causes a heart attack."},
    {"id": "p2", "text": "Bread dough rises because yeast produces carbon dioxide."},
    {"id": "p3", "text": "Statins lower cholesterol and the risk of a heart attack."},
]


def context(searcher: citadel.Searcher, question: str, k: int = 2) -> str:
    """Numbered passages with their evidence, ready for a prompt."""
    lines = []
    for hit in searcher.search(question, k=k):
        explanation = searcher.explain(question, hit.id)
        strongest = sorted(explanation.matches, key=lambda match: -match.gain)[:3]
        keys = ", ".join(match.name for match in strongest if match.gain > 0 and match.name)
        lines.append(f"[{hit.rank}] {hit.passage.text} (matched: {keys or 'overall meaning'})")
    return "\n".join(lines)


def main(folder: str) -> None:
    with citadel.Index.create(folder, overwrite=True) as index:
        index.add(PASSAGES)
        index.commit()
        question = "What causes a myocardial infarction?"
        passages = context(index.searcher(), question)
        print(f"Answer from the passages only.\n\n{passages}\n\nQuestion: {question}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(f"{scratch}/idx")
