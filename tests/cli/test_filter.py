"""`--filter`, `--offset` and `--min-score`, and the commands `list`, `count`, `facets` and `update`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citadel import Index
from tests.cli.conftest import Citadel, write_jsonl

ROWS: list[dict[str, Any]] = [
    {
        "id": f"d{n}",
        "title": f"T{n}" if n % 2 else "",
        "text": f"physics {'theory ' * (n % 4 + 1)}",
        "year": 1900 + n % 3,
        "lang": "en" if n % 2 else "de",
        "is_open": n % 5 == 0,
        "code": n if n % 2 else str(n),
    }
    for n in range(12)
]
FILTER = '{"year": {"$gte": 1901}, "lang": "en"}'


@pytest.fixture
def books(tmp_path: Path, citadel: Citadel) -> Path:
    citadel("index", write_jsonl(tmp_path / "books.jsonl", ROWS), tmp_path / "books", "--model", "bm25")
    return tmp_path / "books"


def ids(text: str) -> list[str]:
    return [hit["id"] for hit in json.loads(text)["hits"]]


def test_search_with_a_filter_equals_the_library(books: Path, citadel: Citadel) -> None:
    truth = Index.open(books).search("theory", filter=json.loads(FILTER))
    assert ids(citadel("search", books, "theory", "--filter", FILTER, "--json").out) == truth.ids
    assert len(truth) == 4
    shown = citadel("search", books, "theory", "--filter", '{"year": 7}').out
    assert shown == "no document matches\n"


def test_offset_and_min_score(books: Path, citadel: Citadel) -> None:
    whole = json.loads(citadel("search", books, "theory", "-k", 12, "--json").out)["hits"]
    page = json.loads(citadel("search", books, "theory", "-k", 3, "--offset", 4, "--json").out)["hits"]
    assert page == whole[4:7] and page[0]["rank"] == 5
    best = whole[0]["score"]
    kept = json.loads(citadel("search", books, "theory", "--min-score", best, "--json").out)["hits"]
    assert kept == [hit for hit in whole if hit["score"] >= best]


def test_offset_beyond_the_index_has_no_hits(books: Path, citadel: Citadel) -> None:
    assert ids(citadel("search", books, "theory", "--offset", 12, "--json").out) == []
    assert ids(citadel("search", books, "theory", "--offset", 10**9, "--json").out) == []
    assert len(ids(citadel("search", books, "theory", "--offset", 10, "--json").out)) == 2


def test_batch_and_run_take_the_same_options(books: Path, tmp_path: Path, citadel: Citadel) -> None:
    queries = write_jsonl(
        tmp_path / "q.jsonl", [{"id": "a", "text": "theory"}, {"id": "b", "text": "physics"}]
    )
    options = ("--filter", FILTER, "--offset", 1, "-k", 2, "--min-score", 0.001)
    run = citadel("search", books, "--queries", queries, "--run", "-", *options).out.splitlines()
    searcher = Index.open(books).searcher()
    for id, query in (("a", "theory"), ("b", "physics")):
        truth = searcher.search(query, 2, filter=json.loads(FILTER), offset=1).ids
        assert [line.split()[2] for line in run if line.split()[0] == id] == truth and len(truth) == 2


def test_vectors_take_a_filter(tmp_path: Path, citadel: Citadel) -> None:
    index = Index.create(tmp_path / "v", fields={"semantic": 2}, router="none", fingerprint="x")
    index.add_vectors([{"id": f"d{n}", "semantic": [1.0, n], "n": n} for n in range(5)])
    index.commit()
    np.savez(tmp_path / "q.npz", semantic=np.array([0.0, 1.0], np.float32))
    command = ("search", tmp_path / "v", "--vectors", tmp_path / "q.npz", "--json")
    assert ids(citadel(*command, "--filter", '{"n": {"$lt": 3}}').out) == ["d2", "d1", "d0"]
    assert ids(citadel(*command, "--offset", 1, "-k", 1).out) == ["d3"]


@pytest.mark.parametrize(
    "command",
    [
        ("search", "theory"),
        ("list",),
        ("count",),
        ("facets", "year"),
        ("delete",),
        ("update", "--set", '{"a": 1}'),
    ],
)
@pytest.mark.parametrize(
    ("filter", "names"),
    [
        ("year", "not valid JSON"),
        ("[]", "a filter is an object"),
        ('{"year": {"$near": 1}}', 'unknown operator "$near" for field "year"'),
        ('{"year": NaN}', "NaN"),
        ('{"year": 1e999}', "too large"),
        ('{"year": 1, "year": 2}', "occurs twice"),
        ('{"lang": {"$gt": "en"}}', 'field "lang"'),
        ('{"code": 1}', 'field "code" holds int and string'),
        (json.dumps({"$or": [{"n": n} for n in range(10_000)]}), "more than 1,000 clauses"),
        ('{"$not":' * 200 + '{"year": 1}' + "}" * 200, "nested deeper than 32 levels"),
        (json.dumps({"lang": "x" * (1 << 20)}), "is longer than 64,000 bytes"),
    ],
)
def test_invalid_filter_is_one_sentence_and_exit_2(
    books: Path, citadel: Citadel, command: tuple[str, ...], filter: str, names: str
) -> None:
    name, *rest = command
    done = citadel(name, books, *rest, "--filter", filter, code=2)
    assert done.err.startswith("citadel: filter: ") and names in done.err and len(done.err) < 400
    assert len(done.err.splitlines()) == 1 and done.out == ""
    assert len(Index.open(books)) == 12


@pytest.mark.parametrize("name", ["a.b", "a\0b", "", "ü"])
def test_any_field_name_can_be_filtered(tmp_path: Path, citadel: Citadel, name: str) -> None:
    rows: list[dict[str, Any]] = [
        {"id": "d1", "text": "theory", name: 1},
        {"id": "d2", "text": "theory", "a": {"b": 1}},
    ]
    citadel("index", write_jsonl(tmp_path / "c.jsonl", rows), tmp_path / "c", "--model", "bm25")
    found = citadel("search", tmp_path / "c", "theory", "--filter", json.dumps({name: 1}), "--json").out
    assert ids(found) == ["d1"]
    if "\0" not in name:  # an argument cannot hold it
        assert citadel("facets", tmp_path / "c", name).out == "1  1\n"


@pytest.mark.parametrize("wrong", [("--offset", -1), ("--offset", "x"), ("--min-score", "nan"), ("-k", 0)])
def test_wrong_page_is_exit_2(books: Path, citadel: Citadel, wrong: tuple[Any, ...]) -> None:
    citadel("search", books, "theory", *wrong, code=2)


def test_count(books: Path, citadel: Citadel) -> None:
    assert citadel("count", books).out == "12\n"
    assert citadel("count", books, "--filter", FILTER).out == "4\n"


def test_facets(books: Path, citadel: Citadel) -> None:
    assert citadel("facets", books, "lang", "--filter", '{"year": 1900}').out == "2  de\n2  en\n"
    assert citadel("facets", books, "is_open").out == "9  false\n3  true\n"
    assert citadel("facets", books, "year", "--limit", 1).out == "4  1900\n"
    assert citadel("facets", books, "none").out == ""
    assert json.loads(citadel("facets", books, "year", "--limit", 1, "--json").out) == {
        "field": "year",
        "values": [{"value": 1900, "count": 4}],
        "matching": 12,
    }
    assert 'field "code"' in citadel("facets", books, "code", code=2).err


def test_list_prints_what_index_reads(books: Path, tmp_path: Path, citadel: Citadel) -> None:
    listed = citadel("list", books).out
    assert [json.loads(line)["id"] for line in listed.splitlines()] == [row["id"] for row in ROWS]
    citadel("index", "-", tmp_path / "copy", "--model", "bm25", stdin=listed.encode())
    assert list(Index.open(tmp_path / "copy").documents()) == list(Index.open(books).documents())
    chosen = citadel("list", books, "--filter", FILTER).out
    assert [json.loads(line)["id"] for line in chosen.splitlines()] == ["d1", "d5", "d7", "d11"]


def test_list_keeps_metadata_named_like_a_field(tmp_path: Path, citadel: Citadel) -> None:
    row: dict[str, Any] = {
        "id": "d1",
        "text": "x",
        "metadata": {"text": "other", "metadata": {"a": 1}, "title": 7},
    }
    citadel("index", write_jsonl(tmp_path / "c.jsonl", [row]), tmp_path / "c", "--model", "bm25")
    citadel(
        "index", "-", tmp_path / "d", "--model", "bm25", stdin=citadel("list", tmp_path / "c").out.encode()
    )
    assert Index.open(tmp_path / "d").get("d1") == Index.open(tmp_path / "c").get("d1")


def test_listed_ids_can_be_deleted(books: Path, citadel: Citadel) -> None:
    listed = citadel("list", books, "--ids", "--filter", FILTER).out
    assert listed == "d1\nd5\nd7\nd11\n"
    assert "4 deleted, 8 documents left" in citadel("delete", books, "--ids", "-", stdin=listed.encode()).out


def test_delete_by_filter(books: Path, citadel: Citadel) -> None:
    done = citadel("delete", books, "--filter", FILTER)
    assert done.out == f"{books}: 4 deleted, 8 documents left\n"
    assert "0 deleted, 8 documents left" in citadel("delete", books, "--filter", FILTER).out
    for everything in ("{}", '{"$and": [{}]}'):
        assert "has no condition" in citadel("delete", books, "--filter", everything, code=2).err
    citadel("delete", books, "d0", "--filter", FILTER, code=2)
    citadel("delete", books, code=2)
    assert len(Index.open(books)) == 8


def test_update_by_id_and_by_filter(books: Path, citadel: Citadel) -> None:
    done = citadel("update", books, "--id", "d0", "--id", "d1", "--id", "gone", "--set", '{"year": 2000}')
    assert done.out == f"{books}: 2 documents updated, 1 id not found\n"
    done = citadel("update", books, "--filter", '{"year": 2000}', "--set", '{"lang": null, "new": true}')
    assert done.out == f"{books}: 2 documents updated\n"
    document = Index.open(books).get("d0")
    assert document is not None
    assert document.metadata == {"year": 2000, "is_open": True, "code": "0", "new": True}
    assert citadel("count", books, "--filter", '{"new": true}').out == "2\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", '{"a": 1}'], "either with --id or with --filter"),
        (["--id", "d1", "--filter", FILTER, "--set", '{"a": 1}'], "either with --id or with --filter"),
        (["--id", "d1"], "--set"),
        (["--id", "d1", "--set", "a=1"], "--set: not valid JSON"),
        (["--id", "d1", "--set", "[1]"], "--set: not a JSON object"),
        (["--id", "d1", "--set", "{}"], "--set names no field"),
        (["--id", "d1", "--set", '{"a": NaN}'], "--set: not valid JSON"),
        (["--id", "d1", "--set", '{"text": "x"}'], "cannot change the text"),
        (["--filter", "{}", "--set", '{"a": 1}'], "has no condition"),
    ],
)
def test_wrong_update_is_exit_2(books: Path, citadel: Citadel, arguments: list[str], message: str) -> None:
    done = citadel("update", books, *arguments, code=2)
    assert message in done.err and len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    "command",
    [
        ("search", "theory", "--filter", '{"yaer": 1905}'),
        ("search", "theory", "--group-by", "yaer"),
        ("count", "--filter", '{"$not": {"yaer": 1}}'),
        ("list", "--filter", '{"yaer": {"$ne": 1}}'),
        ("facets", "yaer"),
    ],
    ids=" ".join,
)
def test_field_that_no_document_has_is_named(command: tuple[str, ...], books: Path, citadel: Citadel) -> None:
    name, *rest = command
    err = citadel(name, books, *rest).err
    assert err.startswith('citadel: no document has a field "yaer"; fields: ') and "year" in err


def test_presence_of_an_unknown_field_is_no_mistake(books: Path, citadel: Citadel) -> None:
    assert citadel("count", books, "--filter", '{"yaer": {"$exists": false}}').err == ""
    assert citadel("count", books, "--filter", '{"yaer": null}').err == ""
