"""Fuzz one text parser with atheris; run by test_text.py as a child process, because atheris exits.

python fuzz_text.py corpus -max_total_time=30 corpus-folder
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["citadel.text", "citadel.eval.runs", "json"]):
    from citadel.errors import InputError
    from citadel.eval.runs import read_qrels, read_run
    from citadel.text.corpus import read_corpus
    from citadel.text.queries import read_queries

Target = Callable[[Path], object]
TARGETS: dict[str, tuple[str, Target]] = {
    "corpus": ("corpus.jsonl", lambda path: list(read_corpus(path))),
    "skip": ("corpus.tsv", lambda path: list(read_corpus(path, on_error="skip"))),
    "queries": ("queries.jsonl", read_queries),
    "run": ("run.trec", read_run),
    "qrels": ("qrels.tsv", read_qrels),
}


def main() -> None:
    file, read = TARGETS[sys.argv[1]]
    with tempfile.TemporaryDirectory(prefix="citadel-fuzz-") as folder:
        path = Path(folder, file)

        def once(data: bytes) -> None:
            path.write_bytes(data)
            try:
                read(path)
            except InputError as error:
                if not str(error).startswith(str(path)):
                    raise AssertionError(f"no file in {error}") from error

        atheris.Setup([sys.argv[0], *sys.argv[2:]], once)
        atheris.Fuzz()


main()
