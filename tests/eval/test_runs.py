"""Run and qrels files: parsing, writing, and errors with file and line."""

from __future__ import annotations

import contextlib
import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citadel.errors import InputError, UsageError
from citadel.eval.runs import MAX_LINE, parse_qrels, parse_run, read_qrels, read_run, write_run
from citadel.types import Hit, Ranking


def numbered(text: str) -> list[tuple[int, bytes]]:
    return [(number, line.encode()) for number, line in enumerate(text.splitlines(), 1)]


def ids(ranking: Ranking) -> dict[str, list[str]]:
    return {query: [hit.id for hit in hits] for query, hits in ranking}


RANKING = Ranking(("q2", "q1"), ((Hit("d1", 2.5, 1), Hit("d3", -1.0, 2)), (Hit("d1", 0.1, 1),)))
LINES = "q2 Q0 d1 1 2.5 demo\nq2 Q0 d3 2 -1 demo\nq1 Q0 d1 1 0.1 demo\n"


# Writing


def test_ranking_as_trec_run() -> None:
    assert RANKING.trec("demo") == LINES
    assert Ranking(("q1",), ((),)).trec() == ""


def test_run_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "run.trec"
    write_run(path, RANKING, "demo")
    assert path.read_text() == LINES
    assert read_run(path) == RANKING
    assert [file.name for file in tmp_path.iterdir()] == ["run.trec"]  # no temporary file is left


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_scores_keep_every_bit_of_fp32(score: float) -> None:
    run = Ranking(("q",), ((Hit("d", score, 1),),)).trec()
    [(_, [hit])] = parse_run(numbered(run), "run")
    assert np.float32(hit.score).tobytes() == np.float32(score).tobytes() or hit.score == score == 0


BAD_IDS = ["a b", "a\tb", "a\n", " a", "", "a\u00a0b", "a\u2028b", "a\x85", "\ud800"]


@pytest.mark.parametrize("bad", BAD_IDS)
def test_id_with_white_space_is_rejected_before_writing(bad: str, tmp_path: Path) -> None:
    path = tmp_path / "run.trec"
    path.write_text("old")
    for ranking in (Ranking((bad,), ((Hit("d1", 1.0, 1),),)), Ranking(("q1",), ((Hit(bad, 1.0, 1),),))):
        with pytest.raises(InputError) as caught:
            ranking.to_trec(path)
        assert repr(bad) in str(caught.value)
        assert caught.value.exit_code == 4
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["run.trec"]


def test_tag_with_white_space_is_rejected() -> None:
    with pytest.raises(UsageError, match="my run"):
        RANKING.trec("my run")


def test_write_to_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.*cannot be written"):
        RANKING.to_trec(tmp_path / "nowhere" / "run.trec")
    with pytest.raises(InputError, match="cannot be written"):
        RANKING.to_trec(tmp_path)


def test_write_follows_links_and_keeps_devices(tmp_path: Path) -> None:
    (tmp_path / "run.trec").write_text("old")
    (tmp_path / "link").symlink_to("run.trec")
    RANKING.to_trec(tmp_path / "link", "demo")
    assert (tmp_path / "run.trec").read_text() == LINES
    assert (tmp_path / "link").is_symlink()
    RANKING.to_trec(os.devnull)
    assert Path(os.devnull).is_char_device()


# Runs


def test_rank_column_breaks_ties() -> None:
    run = parse_run(numbered("q Q0 a 3 1.0 t\nq Q0 z 2 1.0 t\nq Q0 b 9 7.5 t"), "run")
    assert ids(run) == {"q": ["b", "z", "a"]}
    assert [hit.rank for hit in run.hits[0]] == [1, 2, 3]


def test_interleaved_queries_and_blank_lines() -> None:
    run = parse_run(numbered("q1 Q0 a 1 2 t\n\nq2 Q0 a 1 2 t\n \t\nq1 Q0 b 2 1 t\r"), "run")
    assert ids(run) == {"q1": ["a", "b"], "q2": ["a"]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q Q0 d 1 1.0", "5 columns where 6"),
        ("q Q0 d 1 1.0 my tag", "7 columns where 6"),
        ("q Q0 d 1 high t", "score 'high'"),
        ("q Q0 d 1 nan t", "score 'nan'"),
        ("q Q0 d 1 inf t", "score 'inf'"),
        ("q Q0 d first 1.0 t", "rank 'first'"),
        ("q Q0 d 1.5 1.0 t", r"rank '1\.5'"),
        ("p Q0 d 2 1.0 t", "'d' is listed twice under query 'p'"),
    ],
)
def test_bad_run_line_is_named(line: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"^run\.trec:2: .*{message}"):
        parse_run(numbered(f"p Q0 d 1 1.0 t\n{line}"), "run.trec")


# Qrels


def test_trec_and_beir_judgements() -> None:
    trec = parse_qrels(numbered("q1 0 d1 1\nq1 0 d2 0\nq2\t0\td1\t-1"), "qrels")
    beir = parse_qrels(numbered("query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\nq2\td1\t-1"), "test.tsv")
    assert trec == beir == {"q1": {"d1": 1, "d2": 0}, "q2": {"d1": -1}}


def test_beir_ids_may_contain_spaces() -> None:
    assert parse_qrels(numbered("my query\tmy document\t2"), "test.tsv") == {"my query": {"my document": 2}}


def test_byte_order_mark_is_skipped() -> None:
    assert parse_qrels([(1, b"\xef\xbb\xbfq1 0 d1 1")], "qrels") == {"q1": {"d1": 1}}


def test_repeated_judgement_is_accepted() -> None:
    assert parse_qrels(numbered("q 0 d 1\nq 0 d 1"), "qrels") == {"q": {"d": 1}}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q d", "2 columns"),
        ("q d 1", "3 columns"),
        ("q 0 d 1 x", "5 columns"),
        ("q 0 d good", "grade 'good'"),
        ("q 0 d 1.0", r"grade '1\.0'"),
        ("q 0 d 1000001", "grade '1000001'"),
        ("q\td\tscore", "grade 'score'"),
        ("\td\t1", "2 columns"),
        ("p 0 d 2", "judged twice for 'p'"),
    ],
)
def test_bad_qrels_line_is_named(line: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"^qrels:2: .*({message})"):
        parse_qrels(numbered(f"p 0 d 1\n{line}"), "qrels")


def test_empty_qrels_file_is_rejected() -> None:
    with pytest.raises(InputError, match=r"^qrels: no judgement"):
        parse_qrels(numbered("query-id\tcorpus-id\tscore"), "qrels")


# Both formats


def test_invalid_utf8_and_overlong_lines() -> None:
    for parse in (parse_run, parse_qrels):
        with pytest.raises(InputError, match=r"^f:4: the line is not UTF-8"):
            parse([(4, b"q\xff 0 d 1")], "f")
        with pytest.raises(InputError, match=r"^f:4: the line is longer"):
            parse([(4, b"x" * (MAX_LINE + 1))], "f")


pieces = st.sampled_from(
    [b"q", b"0", b"Q0", b"1", b"1e999", b"-", b"\t", b" ", b"\xff", b"\x00", b"9" * 5000, b"_"]
)


@given(st.lists(st.one_of(st.binary(max_size=40), st.lists(pieces, max_size=14).map(b"".join)), max_size=4))
def test_any_bytes_are_parsed_or_rejected(lines: list[bytes]) -> None:
    for parse in (parse_run, parse_qrels):
        with contextlib.suppress(InputError):
            parse(list(enumerate(lines, 1)), "f")


def test_compressed_files(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "run.trec.gz", "wt") as file:
        file.write(LINES)
    assert read_run(tmp_path / "run.trec.gz") == RANKING


def test_missing_file_is_named(tmp_path: Path) -> None:
    for read in (read_run, read_qrels):
        with pytest.raises(InputError, match=r"nowhere\.txt"):
            read(tmp_path / "nowhere.txt")


def test_scifact_judgements(data: Path) -> None:
    qrels = read_qrels(data / "eval" / "scifact" / "qrels" / "test.tsv")
    assert (len(qrels), sum(map(len, qrels.values()))) == (300, 339)
