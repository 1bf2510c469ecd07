"""Given vectors: `index corpus.npz`, `add` and `search --vectors`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citadel import Index
from citadel.cli.support.vectors import find_fields, read_vector_queries
from citadel.errors import InputError
from tests.cli.conftest import Citadel

# Document d1 has tokens under keys 3 and 7, d2 one under 7; d2's token is the longer one.
ARRAYS: dict[str, Any] = {
    "ids": np.array(["d1", "d2"]),
    "offsets": np.array([0, 2, 3]),
    "keys": np.array([3, 7, 7], np.uint32),
    "weights": np.array([1, 1, 2], np.float32),
    "vectors": np.eye(3, 4, dtype=np.float32) + np.eye(3, 4, 1, dtype=np.float32),
    "semantic": np.eye(2, 2, dtype=np.float32),
    "titles": np.array(["One", "Two"]),
    "texts": np.array(["first", "second"]),
}
QUERY: dict[str, Any] = {
    "keys": np.array([7], np.uint32),
    "weights": np.array([1], np.float32),
    "vectors": np.array([[0, 0, 1, 0]], np.float32),
}


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return save(tmp_path / "c.npz", **ARRAYS)


@pytest.fixture
def index(tmp_path: Path, corpus: Path, citadel: Citadel) -> Path:
    citadel(
        "index",
        corpus,
        tmp_path / "idx",
        "--fingerprint",
        "toy",
        "--codec",
        "fp16",
        "--semantic-codec",
        "fp16",
    )
    return tmp_path / "idx"


def hits(out: str) -> list[tuple[str, float]]:
    return [(hit["id"], hit["score"]) for hit in json.loads(out)["hits"]]


def test_dimensions_come_from_the_arrays(index: Path) -> None:
    settings = Index.open(index).settings
    assert settings.lexical is not None
    assert settings.semantic is not None
    assert (settings.router, settings.lexical.dimension, settings.semantic.dimension) == ("dynamic", 4, 2)
    assert (settings.lexical.codec, settings.semantic.codec, settings.fingerprint) == ("fp16", "fp16", "toy")


def test_one_vector_query(index: Path, tmp_path: Path, citadel: Citadel) -> None:
    query = save(tmp_path / "q.npz", **QUERY)
    done = citadel("search", index, "--vectors", query, "--semantic", "off", "--json")
    assert hits(done.out) == [("d2", 2.0), ("d1", 1.0)]  # ⟨q, 2·(e₂+e₃)⟩ = 2, ⟨q, e₁+e₂⟩ = 1
    assert json.loads(done.out)["query"] is None
    plain = citadel("search", index, "--vectors", query, "--semantic", "off").out
    assert plain.splitlines()[1:3] == [" 1.   2.0000  d2  Two", "    second"]


def test_tau_drops_tokens_of_low_weight(index: Path, tmp_path: Path, citadel: Citadel) -> None:
    query = save(tmp_path / "q.npz", **QUERY)
    done = citadel("search", index, "--vectors", query, "--semantic", "off", "--tau", "1.5", "--json")
    assert hits(done.out) == [("d2", 2.0)]


def test_several_queries_with_offsets(index: Path, tmp_path: Path, citadel: Citadel) -> None:
    two = {name: np.concatenate([array, array]) for name, array in QUERY.items()}
    two["keys"] = np.array([7, 3], np.uint32)
    query = save(tmp_path / "q.npz", **two, query_ids=np.array(["a", "b"]), offsets=np.array([0, 2, 2]))
    done = citadel("search", index, "--vectors", query, "--semantic", "off", "--run", tmp_path / "run.trec")
    assert done.out == ""
    rows = [line.split() for line in (tmp_path / "run.trec").read_text().splitlines()]
    assert [(row[0], row[2]) for row in rows] == [("a", "d2"), ("a", "d1")]


def test_text_query_is_a_usage_error(index: Path, citadel: Citadel) -> None:
    assert "--vectors" in citadel("search", index, "words", code=2).err


def test_vectors_on_a_text_index_are_a_usage_error(tmp_path: Path, citadel: Citadel) -> None:
    with Index.create(tmp_path / "text") as text:
        text.add([{"id": "d1", "text": "a"}])
        text.commit()
    query = save(tmp_path / "q.npz", **QUERY)
    assert "takes no vectors" in citadel("search", tmp_path / "text", "--vectors", query, code=2).err
    assert "holds text" in citadel("add", tmp_path / "text", save(tmp_path / "c.npz", **ARRAYS), code=2).err


def test_add_replaces_and_checks_the_fingerprint(index: Path, corpus: Path, citadel: Citadel) -> None:
    assert (
        "2 documents added, 2 replaced; 2 in total"
        in citadel("add", index, corpus, "--fingerprint", "toy").out
    )
    assert "'other'" in citadel("add", index, corpus, "--fingerprint", "other", code=4).err


def test_adding_text_is_a_usage_error(index: Path, tmp_path: Path, citadel: Citadel) -> None:
    (tmp_path / "c.jsonl").write_text('{"id": "d1", "text": "a"}')
    assert "holds given vectors" in citadel("add", index, tmp_path / "c.jsonl", code=2).err


def test_build_resumes_after_a_document(index: Path, corpus: Path, citadel: Citadel) -> None:
    with Index.open(index) as opened:  # as if killed after the first document
        assert opened.build is not None
        opened.delete(["d2"])
        opened.commit(replace(opened.build, line=1, finished=False))
    command = ["index", corpus, index, "--fingerprint", "toy", "--codec", "fp16", "--semantic-codec", "fp16"]
    done = citadel(*command)
    assert "resuming after document 1" in done.err
    assert done.out.endswith(": 2 documents\n")
    assert "the index holds 2 documents" in citadel(*command).out
    assert "was built with fields" in citadel(*command[:-2], code=4).err


def test_changed_file_is_not_resumed(index: Path, corpus: Path, citadel: Citadel) -> None:
    save(corpus, **ARRAYS | {"weights": np.array([1, 1, 1], np.float32)})
    command = ["index", corpus, index, "--fingerprint", "toy", "--codec", "fp16", "--semantic-codec", "fp16"]
    assert "has changed" in citadel(*command, code=4).err


@pytest.mark.parametrize(
    ("drop", "router"),
    [
        ([], "dynamic"),
        (["keys", "weights"], "all_to_all"),
        (["vectors", "semantic"], "sparse"),
        (["keys", "weights", "vectors", "offsets"], "none"),
    ],
)
def test_router_is_derived_from_the_arrays(
    drop: list[str], router: str, tmp_path: Path, citadel: Citadel
) -> None:
    corpus = save(tmp_path / "c.npz", **{name: array for name, array in ARRAYS.items() if name not in drop})
    citadel("index", corpus, tmp_path / "idx", "--fingerprint", "toy")
    assert Index.open(tmp_path / "idx").settings.router == router
    assert len(Index.open(tmp_path / "idx")) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": np.array([1, np.nan, 2], np.float32)}, "'d1'"),
        ({"vectors": np.full((3, 4), np.inf, np.float32)}, "'d1'"),
        ({"offsets": np.array([0, 2, 9])}, "offsets"),
        ({"keys": np.array([1.5, 2, 3])}, "keys"),
        ({"semantic": np.eye(3, dtype=np.float32)}, "semantic"),
        ({"vectors": np.zeros(3, np.float32)}, "vectors must have 2 dimensions"),
        ({"ids": np.array(["d1", {}], dtype=object)}, "npz"),
        ({"ids": np.array(["d1", ""])}, "c.npz: document 2: the id is empty"),
        ({"keys": np.array([3, 7, -7])}, "c.npz: document 'd2': keys are whole numbers"),
        ({"offsets": np.array([0, -2, 3])}, "c.npz: offsets must rise from 0 to 3"),
    ],
)
def test_bad_arrays_are_exit_4_and_add_nothing(
    change: dict[str, Any], message: str, tmp_path: Path, citadel: Citadel
) -> None:
    corpus = save(tmp_path / "c.npz", **ARRAYS | change)
    done = citadel("index", corpus, tmp_path / "idx", "--fingerprint", "toy", code=4)
    assert message in done.err
    if (tmp_path / "idx").exists():
        assert len(Index.open(tmp_path / "idx")) == 0
        citadel("check", tmp_path / "idx", "--deep")


@pytest.mark.parametrize("save_as", [np.savez, np.savez_compressed])
def test_damaged_file_adds_nothing(
    save_as: Callable[..., None], tmp_path: Path, index: Path, citadel: Citadel
) -> None:
    save_as(tmp_path / "x.npz", **ARRAYS)
    whole = bytearray((tmp_path / "x.npz").read_bytes())
    whole[whole.index(b"PK\x01\x02") - 4] ^= 1  # a bit at the end of the last array, before the directory
    (tmp_path / "x.npz").write_bytes(whole)
    for verb in (
        ["index", tmp_path / "x.npz", tmp_path / "new", "--fingerprint", "toy"],
        ["add", index, tmp_path / "x.npz"],
    ):
        assert "x.npz: not an .npz file of plain arrays" in citadel(*verb, "--on-error", "skip", code=4).err
    assert not (tmp_path / "new").exists() or len(Index.open(tmp_path / "new")) == 0
    assert Index.open(index).counts == {}


def test_bad_number_stops_the_build_and_can_be_skipped(tmp_path: Path, citadel: Citadel) -> None:
    count = 2_000  # one posting of 200 dimensions per document: 1.6 MB in slices of 64 kB
    vectors = np.ones((count, 200), np.float32)
    vectors[1_500, 7] = np.nan
    ids, offsets, keys = np.arange(count), np.arange(count + 1), np.zeros(count, np.uint32)
    corpus = save(tmp_path / "c.npz", ids=ids, offsets=offsets, keys=keys, vectors=vectors)
    command = [
        "index",
        corpus,
        tmp_path / "idx",
        "--fingerprint",
        "toy",
        "--memory",
        "1MiB",
        "--commit-bytes",
        500_000,
    ]
    assert "c.npz: document '1500': the vectors hold NaN" in citadel(*command, code=4).err
    committed = len(Index.open(tmp_path / "idx"))
    assert 500 < committed <= 1_500
    citadel("check", tmp_path / "idx", "--deep")
    done = citadel(*command, "--on-error", "skip")  # a commit need not end at the end of a slice
    assert f"resuming after document {committed:,}" in done.err
    assert done.out.endswith("1,999 documents, 1 skipped\n")


def test_bad_document_is_skipped_on_request(tmp_path: Path, citadel: Citadel) -> None:
    corpus = save(tmp_path / "c.npz", **ARRAYS | {"weights": np.array([1, np.nan, 2], np.float32)})
    done = citadel("index", corpus, tmp_path / "idx", "--fingerprint", "toy", "--on-error", "skip")
    assert done.out.endswith("1 document, 1 skipped\n")
    assert "'d1'" in done.err


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04" + bytes(100)])
def test_invalid_npz_file_is_exit_4(content: bytes, tmp_path: Path, index: Path, citadel: Citadel) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    citadel("index", tmp_path / "x.npz", tmp_path / "new", "--fingerprint", "toy", code=4)
    citadel("add", index, tmp_path / "x.npz", code=4)
    citadel("search", index, "--vectors", tmp_path / "x.npz", code=4)
    citadel("search", index, "--vectors", tmp_path / "absent.npz", code=4)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"other": np.zeros(1)}, "no query"),
        (QUERY | {"query_ids": np.array(["a", "a"]), "offsets": np.array([0, 1, 1])}, "duplicate query id"),
        (QUERY | {"query_ids": np.array(["a"])}, "offsets"),
        (QUERY | {"query_ids": np.array(["a"]), "offsets": np.array([0, 2])}, "ascending order, from 0 to 1"),
        (QUERY | {"query_ids": np.array(["a"]), "offsets": np.array([0.0, 1.0])}, "2 integers"),
        (
            {"query_ids": np.array(["a"]), "semantic": np.zeros((2, 2), np.float32)},
            "2 semantic vectors for 1",
        ),
    ],
)
def test_bad_queries_are_refused(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_vector_queries(str(save(tmp_path / "q.npz", **arrays)))


def test_corpus_without_vectors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no array named"):
        find_fields(str(save(tmp_path / "c.npz", ids=np.array(["a"]))), None)
