"""Bad input: no traceback, no half-written index, file and line in every message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from citadel import Index
from citadel.cli.main import run
from tests.cli.conftest import Citadel
from tests.conftest import NIGHT
from tests.text.test_bad_input import REFUSED, REFUSED_TSV

GOOD = b'{"id": "good", "text": "fox"}'
GOOD_TSV = b"good\tfox"
CASES = [("jsonl", GOOD, line) for line in REFUSED] + [("tsv", GOOD_TSV, line) for line in REFUSED_TSV]
WORDS = " ".join(f"w{n}" for n in range(60_000))
LINES = [line for line in REFUSED if b"\n" not in line]


@pytest.mark.parametrize(("suffix", "good", "bad"), CASES, ids=range(len(CASES)))
def test_bad_line_stops_the_build_with_file_and_line(
    suffix: str, good: bytes, bad: bytes, tmp_path: Path, citadel: Citadel
) -> None:
    corpus = tmp_path / f"c.{suffix}"
    corpus.write_bytes(good + b"\n" + bad + b"\n")
    done = citadel("index", corpus, tmp_path / "idx", code=4)
    assert f"{corpus}:2: " in done.err
    with Index.open(tmp_path / "idx") as index:
        assert len(index) == 0
        index.check(deep=True)


@pytest.mark.parametrize(
    ("suffix", "good", "lines"), [("jsonl", GOOD, LINES), ("tsv", GOOD_TSV, [*REFUSED_TSV])]
)
def test_bad_lines_are_skipped_on_request(
    suffix: str, good: bytes, lines: list[bytes], tmp_path: Path, citadel: Citadel
) -> None:
    corpus = tmp_path / f"c.{suffix}"
    corpus.write_bytes(b"\n".join([*lines, good]))
    done = citadel("index", corpus, tmp_path / "idx", "--on-error", "skip", "--commit-bytes", 1)
    assert done.out.endswith(f"1 document, {len(lines)} skipped\n")
    citadel("check", tmp_path / "idx", "--deep")


def test_bad_line_keeps_earlier_commits(tmp_path: Path, citadel: Citadel) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_bytes(b"".join(b'{"id": "d%d", "text": "fox %d"}\n' % (n, n) for n in range(5)) + b"oops\n")
    assert "c.jsonl:6: " in citadel("index", corpus, tmp_path / "idx", "--commit-bytes", 60, code=4).err
    citadel("check", tmp_path / "idx", "--deep")
    assert len(Index.open(tmp_path / "idx")) == 4  # two commits of two; the fifth document was not committed


def test_line_of_50_mb_and_document_of_a_million_tokens(tmp_path: Path, citadel: Citadel) -> None:
    corpus = tmp_path / "c.jsonl"
    rows = [
        {"id": "empty", "text": ""},
        {"id": "tokens", "text": "fox " * 1_000_000},
        {"id": "long", "text": "x" * 50_000_000},
    ]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "3 documents" in citadel("index", corpus, tmp_path / "idx").out
    (answer,) = citadel("search", tmp_path / "idx", "fox", "--run", "-").out.splitlines()
    assert answer.split()[2] == "tokens"


def test_line_beyond_the_limit_is_refused(tmp_path: Path, citadel: Citadel) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_bytes(b"x" * ((64 << 20) + 10) + b"\n" + GOOD)
    assert (
        f"{corpus}:1: the line is longer than 64 MiB"
        in citadel("index", corpus, tmp_path / "idx", code=4).err
    )
    assert "1 document, 1 skipped" in citadel("index", corpus, tmp_path / "idx", "--on-error", "skip").out


def test_last_document_with_an_id_wins(tmp_path: Path, citadel: Citadel) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_bytes(b'{"id": "\\ud83e\\udd8a", "text": "one"}\n{"id": "\\ud83e\\udd8a", "text": "two"}\n')
    assert "1 document, 1 replaced" in citadel("index", corpus, tmp_path / "idx").out
    document = Index.open(tmp_path / "idx").get("🦊")
    assert document is not None
    assert document.text == "two"


@pytest.mark.parametrize("suffix", ["gz", "xz", "zst"])
def test_wrong_compression_suffix_is_refused(suffix: str, tmp_path: Path, citadel: Citadel) -> None:
    corpus = tmp_path / f"c.jsonl.{suffix}"
    corpus.write_bytes(GOOD)
    assert "copy it again" in citadel("index", corpus, tmp_path / "idx", code=4).err


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=5
)
LINE = st.one_of(
    st.binary(max_size=60),
    st.dictionaries(st.sampled_from(["id", "_id", "text", "title", "metadata", "x"]), JSON).map(
        lambda fields: json.dumps(fields).encode()
    ),
    st.sampled_from(LINES[:20]).filter(lambda line: len(line) < 1000),
)


@settings(max_examples=100 if NIGHT else 25, suppress_health_check=list(HealthCheck))
@given(lines=st.lists(LINE, max_size=8))
def test_generated_corpora_end_with_a_documented_code(
    lines: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("generated")
    corpus = folder / "c.jsonl"
    corpus.write_bytes(b"\n".join(lines))
    command = ["index", str(corpus), str(folder / "idx"), "--commit-bytes", "1"]
    assert run(command) in (0, 4)
    code = run([*command, "--on-error", "skip"])
    assert code == (0 if len(Index.open(folder / "idx")) else 4)
    assert run(["check", str(folder / "idx"), "--deep"]) == 0


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (json.dumps({"id": "big", "text": "x" * (1 << 20)}), "document 'big': the line is longer than 1 MiB"),
        (json.dumps({"id": "big", "text": WORDS}), "document 'big' of 0.4 million characters is too large"),
    ],
    ids=["a long line", "many distinct words"],
)
def test_document_beyond_the_memory_limit_is_refused_or_skipped(
    line: str, reason: str, tmp_path: Path, citadel: Citadel
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(f'{{"id": "a", "text": "ant"}}\n{line}\n{{"id": "b", "text": "bee"}}\n')
    command = ["index", corpus, tmp_path / "idx", "--model", "bm25", "--memory", "1MiB"]
    refused = citadel(*command, code=4).err
    assert f"{corpus}:2: {reason}" in refused
    assert "--memory" in refused
    done = citadel(*command, "--on-error", "skip")
    assert "2 documents, 1 skipped" in done.out
    assert f"skipped: {corpus}:2: {reason}" in done.err
    assert citadel("search", tmp_path / "idx", "bee").out.count("b") >= 1
    more = citadel("add", tmp_path / "idx", corpus, "--memory", "1MiB", "--on-error", "skip").out
    assert "2 documents added, 2 replaced, 1 skipped; 2 in total" in more
