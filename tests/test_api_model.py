"""Indexes with a model: search, settings and errors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import citadel
from citadel.encode import batches
from citadel.encode.encoder import Encoder
from citadel.routing import get_router, rank
from tests.index.quick import Quick
from tests.support.models import ROUTERS, ModelFolder

TEXTS = {
    "d1": "einstein proposed relativity in physics",
    "d2": "darwin proposed evolution",
    "d3": "newton proposed gravity",
    "d4": "a history of rome, the history of the history",
    "d5": "",
    "d6": "who " * 40,
}
QUERIES = ["who proposed relativity", "rome", "the history of physics in rome"]


def documents() -> list[dict[str, Any]]:
    return [{"id": id, "text": text} for id, text in TEXTS.items()]


def build(path: Path, folder: Path, **options: Any) -> citadel.Index:
    index = citadel.Index.create(Quick(path), model=folder, **options)
    assert index.add(documents()) == len(TEXTS)
    return index.commit()


@pytest.mark.parametrize("router", ROUTERS)
def test_search_agrees_with_the_formula(router: str, tiny_model: ModelFolder, tmp_path: Path) -> None:
    codecs = {"codec": "fp16"} | ({"semantic_codec": "fp16"} if router in ("dynamic", "none") else {})
    with pytest.warns(citadel.TruncatedDocumentsWarning):
        index = build(tmp_path / "index", tiny_model(router), long="cut", **codecs)
    searcher = index.searcher()
    encoder, ids = Encoder(tiny_model(router)), list(TEXTS)
    routed = encoder.encode_documents(list(TEXTS.values()))
    for query in QUERIES:
        expected = rank(encoder.encode_query(query), routed, get_router(router).floor, k=3)
        hits = searcher.search(query, k=3)
        np.testing.assert_allclose(hits.scores, [score for _, score in expected], rtol=5e-3, atol=5e-3)
        assert hits.ids[0] == ids[expected[0][0]]


@pytest.mark.parametrize("router", ROUTERS)
def test_batch_equals_single_queries(router: str, tiny_model: ModelFolder, tmp_path: Path) -> None:
    searcher = build(tmp_path / "index", tiny_model(router, "int8")).searcher()
    ranking = searcher.search_batch(QUERIES, k=6)
    for query, (_, hits) in zip(QUERIES, ranking, strict=True):
        alone = searcher.search(query, k=6)
        assert [(hit.id, hit.score) for hit in hits] == [(hit.id, hit.score) for hit in alone]


def test_index_records_its_model(tiny_model: ModelFolder, tmp_path: Path) -> None:
    folder = tiny_model()
    index = build(tmp_path / "index", folder)
    settings = index.settings
    assert settings == citadel.Settings(
        "dynamic",
        Encoder(folder).fingerprint,
        citadel.Field(8),
        citadel.Field(16),
        1.0,
        model=folder.name,
        long=citadel.LongDocuments("chunk", 22, 2),
    )
    assert settings.has_text_queries
    assert index.counts == {"split": 1}
    assert index.stats()["counts"]["split"] == 1
    again = citadel.Index.open(tmp_path / "index", model=folder)
    assert again.settings == settings
    assert again.searcher().search("rome").ids == index.searcher().search("rome").ids
    assert again.get("d4") == citadel.Document("d4", TEXTS["d4"])


@pytest.mark.parametrize("router", ["dynamic", "none"])
def test_document_without_tokens_is_never_a_hit(router: str, tiny_model: ModelFolder, tmp_path: Path) -> None:
    index = build(tmp_path / "index", tiny_model(router))
    assert "d5" in index
    for query in ("rome", "who"):
        hits = index.searcher().search(query, k=10)
        assert set(hits.ids) == set(TEXTS) - {"d5"}
        assert set(index.merge().searcher().search(query, k=10).ids) == set(TEXTS) - {"d5"}


@pytest.mark.parametrize("query", ["", "  \n", "\u200b"])
def test_query_without_tokens_is_refused(query: str, tiny_model: ModelFolder, tmp_path: Path) -> None:
    searcher = build(tmp_path / "index", tiny_model()).searcher()
    with pytest.raises(citadel.EmptyQueryError, match="has no words to search for"):
        searcher.search(query)
    with pytest.raises(citadel.EmptyQueryError, match="has no words to search for"):
        searcher.search_batch(["rome", query])


def test_truncated_query_is_reported(tiny_model: ModelFolder, tmp_path: Path) -> None:
    searcher = build(tmp_path / "index", tiny_model()).searcher()
    assert searcher.search("who " * 200).query_cut
    assert not searcher.search("who").query_cut
    assert [hits.query_cut for _, hits in searcher.search_batch(["who", "who " * 200])] == [False, True]  # type: ignore[attr-defined]


def test_truncated_documents_give_one_warning(tiny_model: ModelFolder, tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "index"), model=tiny_model(), long="cut")
    with pytest.warns(citadel.TruncatedDocumentsWarning) as caught:
        index.add([{"id": str(n), "text": "who " * 400 if n else "who"} for n in range(3)])
    (warning,) = caught
    assert str(warning.message).startswith(f"2 documents are longer than the {index.max_tokens} tokens")
    assert warning.filename == __file__
    index.rollback()


def test_tau_and_codecs_can_be_chosen(tiny_model: ModelFolder, tmp_path: Path) -> None:
    own = build(tmp_path / "own", tiny_model()).stats()
    low = build(tmp_path / "low", tiny_model(), tau=0.0, codec="fp16", semantic_codec="fp16")
    assert (own["tau"], low.stats()["tau"]) == (1.0, 0.0)
    assert low.stats()["postings"] > own["postings"]
    assert low.stats()["codecs"] == ["fp16"]


def test_batching_does_not_change_results(
    tiny_model: ModelFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = build(tmp_path / "whole", tiny_model(precision="int8"))
    monkeypatch.setattr(batches, "DOCUMENTS_PER_GROUP", 2)
    parts = citadel.Index.create(
        Quick(tmp_path / "parts"), model=tiny_model(precision="int8"), memory=1 << 20
    )
    for document in documents():
        parts.add([document])
    parts.commit()
    for query in QUERIES:
        results = [index.searcher().search(query) for index in (whole, parts)]
        assert results[0].ids == results[1].ids and results[0].scores == results[1].scores


def test_documents_before_an_invalid_one_are_kept(tiny_model: ModelFolder, tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "index"), model=tiny_model())
    with pytest.raises(citadel.InputError, match="id"):
        index.add([*documents()[:2], {"id": None, "text": "x"}, *documents()[2:]])
    assert len(index.commit()) == 2


def test_failing_stream_adds_nothing(tiny_model: ModelFolder, tmp_path: Path) -> None:
    def stream() -> Iterator[dict[str, Any]]:
        yield from documents()
        raise RuntimeError("the stream broke")

    index = citadel.Index.create(Quick(tmp_path / "index"), model=tiny_model())
    with pytest.raises(RuntimeError):
        index.add(stream())
    assert len(index.commit()) == 0


def test_replace_and_delete(tiny_model: ModelFolder, tmp_path: Path) -> None:
    index = build(tmp_path / "index", tiny_model())
    index.add([{"id": "d2", "text": "a history of rome"}])
    index.delete(["d4"])
    index.commit()
    assert (len(index), index.counts["replaced"]) == (len(TEXTS) - 1, 1)
    assert index.merge().searcher().search("a history of rome").ids[0] == "d2"


# ---- the model's folder ------------------------------------------------------------------------------------


def test_model_that_is_not_installed(
    tiny_model: ModelFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build(tmp_path / "index", tiny_model())
    lost = citadel.Index.open(tmp_path / "index")
    assert len(lost) == len(TEXTS)  # works without the model
    wanted = (
        f"the model 'model' \\(fingerprint {built.settings.fingerprint[:12]}…\\).*--model DIR.*CITADEL_MODEL"
    )
    with pytest.raises(citadel.InputError, match=wanted) as caught:
        lost.searcher().search("rome")
    assert caught.value.exit_code == 4
    expected = built.searcher().search("rome").ids
    assert (
        citadel.Index.open(tmp_path / "index", model=tiny_model()).searcher().search("rome").ids == expected
    )
    monkeypatch.setenv("CITADEL_MODEL", str(tiny_model()))
    assert citadel.Index.open(tmp_path / "index").searcher().search("rome").ids == expected
    monkeypatch.setenv("CITADEL_MODEL", str(tiny_model("static")))  # another model
    with pytest.raises(citadel.InputError, match=wanted):
        citadel.Index.open(tmp_path / "index").searcher().search("rome")


def test_installed_model_is_located_by_fingerprint(
    tiny_model: ModelFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from citadel.encode import locate

    build(tmp_path / "index", tiny_model())
    shutil.copytree(tiny_model("static"), tmp_path / "models" / "default")
    shutil.copytree(tiny_model(), tmp_path / "models" / "renamed")
    monkeypatch.setattr(locate, "_DEFAULT_FOLDERS", (tmp_path / "models" / "default",))
    assert citadel.Index.open(tmp_path / "index").searcher().search("rome").ids


def test_other_model_is_refused(tiny_model: ModelFolder, tmp_path: Path) -> None:
    build(tmp_path / "index", tiny_model())
    other = citadel.Index.open(tmp_path / "index", model=tiny_model(precision="int8"))
    names = [Encoder(tiny_model(precision=precision)).fingerprint[:12] for precision in ("int8", "fp32")]
    for change in (lambda: other.searcher().search("rome"), lambda: other.add(documents())):
        with pytest.raises(citadel.FingerprintError, match=f"{names[0]}….*{names[1]}…"):
            change()
    assert not other.has_changes


def test_model_is_refused_for_an_index_without_one(tiny_model: ModelFolder, tmp_path: Path) -> None:
    citadel.Index.create(Quick(tmp_path / "text"))
    with pytest.raises(citadel.UsageError, match="not built with a model"):
        citadel.Index.open(tmp_path / "text", model=tiny_model())
    assert len(citadel.Index.open(tmp_path / "text", model="bm25")) == 0


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"router": "static"}, citadel.UsageError, "the model's router is dynamic, not static"),
    ({"tau": 9.0}, citadel.UsageError, "τ = 9"),
    ({"tau": float("nan")}, citadel.UsageError, "τ = nan"),
    ({"codec": "int4"}, citadel.UsageError, "unknown codec"),
    ({"semantic_codec": "pq2"}, citadel.UsageError, "fp16 or int8"),
    ({"model": "nowhere"}, citadel.InputError, "nowhere: there is no such model"),
    ({"model": ""}, citadel.InputError, "give its path"),
    ({"model": "bad\udcff"}, citadel.InputError, "valid UTF-8"),
]


@pytest.mark.parametrize(("options", "kind", "message"), REFUSED)
def test_invalid_options_are_refused(
    options: dict[str, Any], kind: type[Exception], message: str, tiny_model: ModelFolder, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=message):
        citadel.Index.create(tmp_path / "index", **({"model": tiny_model()} | options))
    assert not (tmp_path / "index").exists()


def test_manifest_without_model_field_opens(tmp_path: Path) -> None:
    """As written before models were supported."""
    from citadel.index.checksum import crc32c

    citadel.Index.create(Quick(tmp_path / "index"))
    [file] = (tmp_path / "index").glob("gen.*")
    manifest = json.loads(file.read_bytes().splitlines()[0])
    assert manifest["settings"].pop("model") is None
    line = json.dumps(manifest).encode()
    file.write_bytes(line + f"\n{crc32c(line):08x}\n".encode())
    assert citadel.Index.open(tmp_path / "index").settings.model is None
