"""tantivy: Lucene's design in Rust; its own BM25 (k1 1.2, b 0.75) with English stemming."""

from __future__ import annotations

import re
from pathlib import Path

from harness import K, Search, Task, one_core, run_peer


def build(task: Task, scratch: Path) -> Search:
    import tantivy

    fields = tantivy.SchemaBuilder()
    fields.add_integer_field("number", stored=True, indexed=True, fast=True)
    fields.add_text_field("text", tokenizer_name="en_stem")
    index = tantivy.Index(fields.build(), path=str(scratch))
    writer = index.writer(num_threads=1)
    for number, text in enumerate(task.texts):
        writer.add_document(tantivy.Document(number=number, text=text))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher, queries = index.searcher(), task.queries

    def search(query: int) -> list[int]:
        words = " ".join(re.findall(r"\w+", queries[query].lower()))  # no query operators
        hits = searcher.search(index.parse_query(words, ["text"]), K).hits
        return [searcher.doc(address)["number"][0] for _, address in hits]

    return search


if __name__ == "__main__":
    one_core()
    run_peer("tantivy", build)
