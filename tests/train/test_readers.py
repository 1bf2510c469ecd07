"""Readers of every training format, and errors with file and line."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from citadel.errors import InputError
from citadel.train.config_tables import DataPart
from citadel.train.readers import read_source
from citadel.train.source import SourceData
from tests.train.conftest import PAIRS, TEXTS

Write = Callable[[str, Any], str]


def pairs(source: SourceData) -> list[tuple[str, str]]:
    ids = source.passages.ids.texts
    return [
        (source.queries[q], ids[p])
        for q, p in zip(source.query.tolist(), source.positive.tolist(), strict=True)
    ]


def negatives(source: SourceData) -> list[list[str]]:
    assert source.negatives is not None
    return [
        source.passages.ids.texts.some(source.negatives[row].tolist()) for row in range(len(source.negatives))
    ]


def test_pairs(folder: Path) -> None:
    source = read_source(DataPart(folder=str(folder)))
    assert pairs(source) == [(query, id) for query, id, _ in PAIRS]
    assert list(source.passages.texts) == list(TEXTS.values())
    assert [source.kind_names[kind] for kind in source.kind] == ["question", "question", "term", "term"]
    assert source.passages.source_names == ("s-d1", "s-d2", "s-d3", "s-d4", "s-d5")


@pytest.mark.parametrize(("suffix", "pack"), [(".xz", lzma.compress), (".gz", gzip.compress)])
def test_compressed_pairs(folder: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    for name in ("passages.jsonl", "pairs.jsonl"):
        (folder / (name + suffix)).write_bytes(pack((folder / name).read_bytes()))
        (folder / name).unlink()
    assert len(read_source(DataPart(folder=str(folder))).query) == 4


def test_title_and_text_are_joined(write: Write) -> None:
    part = DataPart(
        passages=write("p.jsonl", [{"id": 1, "title": "Heart", "text": "It beats."}]),
        pairs=write("q.jsonl", [{"query": " heart ", "positive": 1}, {"query": "heart", "positive": 1}]),
    )
    source = read_source(part)
    assert source.passages.texts[0] == "Heart It beats."
    assert list(source.queries) == ["heart"]  # equal texts are one query
    assert source.query.tolist() == [0, 0]


def msmarco(write: Write) -> dict[str, Any]:
    return {
        "format": "msmarco",
        "collection": write("collection.tsv", "".join(f"{id}\t{text}\n" for id, text in TEXTS.items())),
        "queries": write("queries.tsv", "q1\twhat pumps blood\nq2\tlens\n"),
    }


def test_msmarco_qrels(write: Write) -> None:
    files = msmarco(write) | {"qrels": write("qrels.tsv", "q1\t0\td1\t1\nq2\t0\td3\t1\nq2\t0\td4\t0\n")}
    assert pairs(read_source(DataPart(**files))) == [("what pumps blood", "d1"), ("lens", "d3")]


def test_msmarco_triples_of_ids(write: Write) -> None:
    files = msmarco(write) | {"triples": write("triples.tsv", "q2\td3\td4\nq1\td1\td2\nq2\td3\td1\n")}
    source = read_source(DataPart(**files))
    assert pairs(source) == [("lens", "d3"), ("what pumps blood", "d1")]
    assert negatives(source) == [["d4", "d1"], ["d2"]]


def test_msmarco_triples_of_texts(write: Write) -> None:
    file = write("triples.tsv", "lens\tLight bends.\tCopper.\nheart\tBlood.\tCopper.\n")
    source = read_source(DataPart(format="msmarco", triples=file))
    assert pairs(source) == [("lens", "1"), ("heart", "3")]
    assert negatives(source) == [["2"], ["2"]]
    assert list(source.passages.texts) == ["Light bends.", "Copper.", "Blood."]


def test_tevatron(write: Write) -> None:
    rows = [
        {
            "query_id": "1",
            "query": "lens",
            "positive_passages": [
                {"docid": "a", "title": "Light", "text": "bends"},
                {"docid": "b", "text": "glass"},
            ],
            "negative_passages": [{"docid": "c", "title": "", "text": "copper"}],
        },
        {
            "query_id": "2",
            "query": "metal",
            "positive_passages": [{"docid": "c", "text": "copper"}],
            "negative_passages": [],
        },
    ]
    source = read_source(DataPart(format="tevatron", pairs=write("train.jsonl", rows)))
    assert pairs(source) == [("lens", "a"), ("lens", "b"), ("metal", "c")]
    assert negatives(source) == [["c"], ["c"], []]
    assert source.passages.texts[source.positive[0]] == "Light bends"


def beir(write: Write, judged: str) -> DataPart:
    write("beir/corpus.jsonl", [{"_id": id, "text": text} for id, text in TEXTS.items()])
    write("beir/queries.jsonl", [{"_id": "q1", "text": "lens"}, {"_id": "q2", "text": "heart"}])
    file = write("beir/qrels/train.tsv", "query-id\tcorpus-id\tscore\n" + judged)
    return DataPart(format="beir", folder=str(Path(file).parents[1]))


def test_beir(write: Write) -> None:
    source = read_source(beir(write, "q1\td3\t1\nq2\td1\t2\nq2\td2\t0\n"))
    assert pairs(source) == [("lens", "d3"), ("heart", "d1")]


# Rejected input


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"query": "lens", "positive": "d9"}, "'d9' is not in the collection"),
        ({"query": " ", "positive": "d1"}, "the query is empty"),
        ({"positive": "d1"}, "the query is empty"),
        ({"query": 7, "positive": "d1"}, "the query is not a string"),
        ({"query": "lens"}, "'positive' is missing"),
    ],
)
def test_bad_pair(folder: Path, line: dict[str, Any], reason: str, write: Write) -> None:
    file = write("bad.jsonl", [{"query": "lens", "positive": "d3"}, line])
    with pytest.raises(InputError, match=reason) as caught:
        read_source(DataPart(passages=str(folder / "passages.jsonl"), pairs=file))
    assert (caught.value.source, caught.value.line, caught.value.exit_code) == (file, 2, 4)


def test_line_is_not_json(folder: Path, write: Write) -> None:
    file = write("bad.jsonl", "{\n")
    with pytest.raises(InputError, match="not valid JSON") as caught:
        read_source(DataPart(passages=str(folder / "passages.jsonl"), pairs=file))
    assert caught.value.line == 1


def test_repeated_passage_id(write: Write) -> None:
    file = write("p.jsonl", [{"id": "a", "text": "x"}, {"id": "b", "text": "y"}, {"id": "a", "text": "z"}])
    with pytest.raises(InputError, match="'a' is listed twice") as caught:
        read_source(DataPart(passages=file, pairs=write("q.jsonl", [{"query": "x", "positive": "a"}])))
    assert (caught.value.source, caught.value.line) == (file, 3)


@pytest.mark.parametrize(
    ("triple", "reason"),
    [
        ("q1\td1", "2 columns"),
        ("q9\td1\td2", "'q9' is not among the queries"),
        ("q1\td9\td2", "'d9' is not in the collection"),
        ("q1\td1\td9", "'d9' is not in the collection"),
    ],
)
def test_bad_triple(write: Write, triple: str, reason: str) -> None:
    files = msmarco(write) | {"triples": write("triples.tsv", f"q1\td1\td2\n{triple}\n")}
    with pytest.raises(InputError, match=reason) as caught:
        read_source(DataPart(**files))
    assert caught.value.line == 2


@pytest.mark.parametrize(
    ("judged", "reason"),
    [
        ("q1\td9\t1\n", "'d9' is not in"),
        ("q9\td1\t1\n", "'q9' is not among"),
        ("q1\td1\tyes\n", "'yes' is not a num"),
    ],
)
def test_bad_judgement(write: Write, judged: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        read_source(beir(write, "q1\td3\t1\n" + judged))
    assert caught.value.line == 3


def test_tevatron_line_without_positive(write: Write) -> None:
    with pytest.raises(InputError, match="no positive passage"):
        read_source(DataPart(format="tevatron", pairs=write("t.jsonl", [{"query": "lens"}])))


def test_missing_file_names_its_key(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data\.pairs: no such file"):
        read_source(DataPart(passages=str(tmp_path / "a"), pairs=str(tmp_path / "b")))
    with pytest.raises(InputError, match=r"data\.pairs is missing: the format 'pairs' needs it"):
        read_source(DataPart())


@pytest.mark.parametrize("name", ["scifact", "SciFact", "scifact.jsonl"])
def test_scifact_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="SciFact is a test collection"):
        read_source(DataPart(format="beir", folder=str(tmp_path / name)))


def test_link_to_scifact_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "scifact").mkdir()
    (tmp_path / "harmless").symlink_to(tmp_path / "scifact")
    with pytest.raises(InputError, match="SciFact"):
        read_source(DataPart(format="beir", folder=str(tmp_path / "harmless")))


def test_judgements_without_a_relevant_passage(write: Write) -> None:
    with pytest.raises(InputError, match="no pair"):
        read_source(beir(write, "q1\td3\t0\n"))
