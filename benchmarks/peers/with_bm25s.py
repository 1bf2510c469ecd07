"""bm25s: BM25 with precomputed scores, its own stop words, and PyStemmer if it is installed."""

from __future__ import annotations

from pathlib import Path

from harness import K, Search, Task, one_core, run_peer


def build(task: Task, scratch: Path) -> Search:
    import bm25s

    try:
        import Stemmer

        stemmer = Stemmer.Stemmer("english")
    except ImportError:
        stemmer = None
    tokens = bm25s.tokenize(task.texts, stopwords="en", stemmer=stemmer, show_progress=False)
    index = bm25s.BM25(k1=0.9, b=0.4)
    index.index(tokens, show_progress=False)
    index.save(str(scratch))
    queries = task.queries
    depth = min(K, len(task.ids))

    def search(query: int) -> list[int]:
        tokens = bm25s.tokenize([queries[query]], stopwords="en", stemmer=stemmer, show_progress=False)
        numbers, _ = index.retrieve(tokens, k=depth, show_progress=False, n_threads=1)
        return [int(number) for number in numbers[0]]

    return search


if __name__ == "__main__":
    one_core()
    run_peer("bm25s", build)
