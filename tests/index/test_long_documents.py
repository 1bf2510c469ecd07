"""Documents longer than the model reads: split into passages, cut, or refused; hits are documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import citadel
from citadel.cli.bench import latency
from citadel.encode.encoder import Encoder
from citadel.encode.passages import PassageSplitter
from citadel.settings import LongDocuments
from tests.index.quick import Quick
from tests.support.models import ROUTERS, ModelFolder

FILLER = "a history of rome, the history of the history. "
LONG = FILLER * 6 + "newton proposed gravity. " + FILLER * 6 + "darwin proposed evolution. " + FILLER
DOCUMENTS: list[dict[str, Any]] = [
    {"id": "long", "title": "physics", "text": LONG, "kind": "book"},
    {"id": "short", "text": "einstein proposed relativity in physics", "kind": "note"},
    {"id": "also", "text": "newton", "kind": "note"},
]


def build(path: Path, model: Path, documents: list[dict[str, Any]] = DOCUMENTS, **options: Any) -> Any:
    index = citadel.Index.create(Quick(path), model=model, **options)
    index.add(documents)
    return index.commit()


def test_settings_are_stored(tiny_model: ModelFolder, tmp_path: Path) -> None:
    index = build(tmp_path / "i", tiny_model(), chunk_tokens=14, chunk_overlap=2)
    again = citadel.Index.open(tmp_path / "i", model=tiny_model())
    assert again.settings.long == index.settings.long == LongDocuments("chunk", 14, 2)
    default = citadel.Index.create(Quick(tmp_path / "j"), model=tiny_model())
    assert default.settings.long == LongDocuments("chunk", 22, 2)  # the model reads 24, two of them special


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"long": "split"}, "choose one of chunk, cut, fail"),
        ({"chunk_tokens": 0}, "too short"),
        ({"chunk_tokens": 23}, "more than the 22 tokens"),
        ({"chunk_tokens": True}, "a whole number"),
        ({"chunk_tokens": 16, "chunk_overlap": 9}, "0 to 8"),
        ({"chunk_overlap": -1}, "out of range"),
        ({"long": "cut", "chunk_tokens": 16}, "need long='chunk'"),
    ],
)
def test_impossible_options(
    options: dict[str, Any], message: str, tiny_model: ModelFolder, tmp_path: Path
) -> None:
    with pytest.raises(citadel.UsageError, match=message):
        citadel.Index.create(Quick(tmp_path / "i"), model=tiny_model(), **options)


def test_bm25_has_no_passages(tmp_path: Path) -> None:
    with pytest.raises(citadel.UsageError, match="bm25 reads whole texts"):
        citadel.Index.create(Quick(tmp_path / "i"), model="bm25", long="chunk")


@pytest.mark.parametrize("router", ROUTERS)
def test_long_document_is_one_hit_with_its_best_passage(
    router: str, tiny_model: ModelFolder, tmp_path: Path
) -> None:
    index = build(tmp_path / "i", tiny_model(router))
    assert len(index) == 3 and index.counts == {"split": 1}
    assert index.stats()["passages"] > 8
    assert index.get("long") == citadel.Document("long", LONG, "physics", {"kind": "book"})
    for query in ("darwin evolution", "newton gravity", "history of rome"):
        hits = index.search(query)
        assert len(set(hits.ids)) == len(hits.ids)
        [hit] = [hit for hit in hits if hit.id == "long"]
        passage = hit.passage
        assert LONG[passage.start : passage.end] == passage.text and passage.score == hit.score
        assert hit.to_dict()["passage"]["text"] == passage.text
        scores = [other.score for other in hit.passages]
        assert len(scores) == index.stats()["passages"] - 3
        assert all(score <= hit.score for score in scores)
        ranked = [score for score in scores if score]
        assert ranked == sorted(ranked, reverse=True)


def test_passages_score_like_documents_of_their_own(tiny_model: ModelFolder, tmp_path: Path) -> None:
    """The oracle indexes what the model reads of each passage as a document."""
    index = build(tmp_path / "i", tiny_model())
    splitter = PassageSplitter(Encoder(tiny_model()).tokenizer, index.settings.long)
    texts = [splitter.text("physics", LONG, span) for span in splitter.spans("physics", LONG)]
    parts = [{"id": f"p{n}", "text": text, "book": "long"} for n, text in enumerate(texts)]
    alone = build(tmp_path / "j", tiny_model(), parts)
    for query in ("darwin evolution", "newton gravity", "who"):
        best = alone.search(query, k=1)[0]
        [hit] = [hit for hit in index.search(query) if hit.id == "long"]
        assert hit.score == best.score and best.text.endswith(hit.passage.text)
        assert [one.score for one in alone.search(query, group_by="book")] == [hit.score]


def test_short_documents_are_stored_as_before(tiny_model: ModelFolder, tmp_path: Path) -> None:
    chunked = build(tmp_path / "i", tiny_model(), DOCUMENTS[1:])
    cut = build(tmp_path / "j", tiny_model(), DOCUMENTS[1:], long="cut")
    sections = [index.stats()["sections"] for index in (chunked, cut)]
    assert sections[0] == {**sections[1], "META": sections[0]["META"]}
    assert "PASSAGE_STARTS" not in sections[0]
    one, other = chunked.search("newton"), cut.search("newton")
    assert (one.ids, one.scores) == (other.ids, other.scores)
    assert one[0].passage.text == "newton" and one[0].passages == ()


def test_explanation_is_of_the_best_passage(tiny_model: ModelFolder, tmp_path: Path) -> None:
    index = build(tmp_path / "i", tiny_model())
    [hit] = [hit for hit in index.search("darwin evolution") if hit.id == "long"]
    explanation = index.searcher().explain("darwin evolution", "long")
    assert explanation.score == pytest.approx(hit.score, rel=1e-6)
    assert (explanation.text_start, explanation.text) == (hit.passage.start, hit.passage.text)
    assert explanation.title == "physics" and explanation.text_cut


def test_replace_delete_merge_and_check(tiny_model: ModelFolder, tmp_path: Path) -> None:
    index = build(tmp_path / "i", tiny_model())
    index.add([{"id": "second", "text": LONG}, {"id": "short", "text": LONG + " rome"}])
    index.delete(["also"])
    index.commit()
    index.check(deep=True)
    expected = [(hit.id, hit.score, hit.passage) for hit in index.search("darwin")]
    assert sorted(id for id, _, _ in expected) == ["long", "second", "short"]
    index.merge().check(deep=True)
    assert [(hit.id, hit.score, hit.passage) for hit in index.search("darwin")] == expected
    index.add([{"id": id, "text": "rome"} for id in ("long", "second", "short")])
    index.commit().merge().check(deep=True)
    assert index.stats()["passages"] == 3 and not index.searcher().snapshot.has_long_documents


def test_filters_speak_of_documents(tiny_model: ModelFolder, tmp_path: Path) -> None:
    index = build(tmp_path / "i", tiny_model())
    assert index.search("newton", filter={"kind": "book"}).ids == ["long"]
    assert set(index.search("newton", filter={"kind": "note"}).ids) == {"short", "also"}
    assert index.count({"kind": "book"}) == 1 and index.facets("kind") == [("note", 2), ("book", 1)]
    assert list(index.ids()) == ["long", "short", "also"]
    index.update_metadata("long", {"kind": "note"})
    assert index.count({"kind": "note"}) == 3
    assert index.search("darwin evolution", filter={"kind": "note"})[0].passage.text


def test_fail_refuses_long_documents(tiny_model: ModelFolder, tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "i"), model=tiny_model(), long="fail")
    with pytest.raises(citadel.InputError, match="document 'long' is longer than the 22 tokens"):
        index.add([*DOCUMENTS[1:], DOCUMENTS[0]])
    index.commit()
    assert sorted(index.ids()) == ["also", "short"]  # those before the refused one


def test_cut_warns_and_reads_the_beginning(tiny_model: ModelFolder, tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "i"), model=tiny_model(), long="cut")
    with pytest.warns(citadel.TruncatedDocumentsWarning, match="1 document is longer"):
        index.add(DOCUMENTS)
    assert index.commit().stats()["passages"] == 3


def test_title_without_text_is_one_passage(tiny_model: ModelFolder, tmp_path: Path) -> None:
    documents = [
        {"id": "d1", "title": "rome " * 40, "text": ""},
        {"id": "d2", "title": "rome " * 40, "text": "newton"},
    ]
    index = build(tmp_path / "i", tiny_model(), documents)
    assert index.stats()["passages"] == 2
    index.check(deep=True)
    assert sorted(index.search("rome").ids) == ["d1", "d2"]


def test_document_beyond_the_memory_bound_is_refused(tiny_model: ModelFolder, tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "i"), model=tiny_model(), memory=1 << 20)
    with pytest.raises(citadel.DocumentTooLargeError, match="document 'book' of"):
        index.add([{"id": "book", "text": FILLER * 2000}])


def test_progress_counts_documents(tiny_model: ModelFolder, tmp_path: Path) -> None:
    seen: list[int] = []
    index = citadel.Index.create(Quick(tmp_path / "i"), model=tiny_model())
    index.add(DOCUMENTS, progress=seen.append)
    assert seen[-1] == 3 and seen == sorted(seen)


def test_group_by_of_a_list_is_an_error(tiny_model: ModelFolder, tmp_path: Path) -> None:
    index = build(tmp_path / "i", tiny_model(), [{"id": "d1", "text": "rome", "tags": ["a"]}])
    with pytest.raises(citadel.FilterError, match="'tags' holds lists"):
        index.search("rome", group_by="tags")
    with pytest.raises(citadel.UsageError, match="name of a field"):
        index.search("rome", group_by=3)
    assert index.search("rome", group_by="nothing").ids == ["d1"]


def test_passage_numbers_lead_to_documents(tiny_model: ModelFolder, tmp_path: Path) -> None:
    index = build(tmp_path / "i", tiny_model())
    index.add([{"id": "second", "text": LONG}])
    snapshot = index.commit().searcher().snapshot
    total = int(snapshot.passage_bases[-1])
    owners = snapshot.owner_ids(np.arange(total))
    assert list(dict.fromkeys(owners)) == ["long", "short", "also", "second"]
    for number, id in enumerate(dict.fromkeys(owners)):
        assert [owners[passage] for passage in snapshot.passages_of(number)] == [id] * owners.count(id)


def test_latency_of_an_index_with_long_documents(
    tiny_model: ModelFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build(tmp_path / "i", tiny_model())
    queries = tmp_path / "queries.tsv"
    queries.write_text("q1\tdarwin evolution\n")
    latency(str(tmp_path / "i"), queries=str(queries), model=str(tiny_model()), k=2)
    assert "token retrieval" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options", [{}, {"min_score": 1.0}, {"offset": 3}, {"group_by": "kind", "min_score": -9.0}]
)
@pytest.mark.parametrize("k", [0, 1, 99])
def test_pages_of_long_documents(
    k: int, options: dict[str, Any], tiny_model: ModelFolder, tmp_path: Path
) -> None:
    index = build(tmp_path / "i", tiny_model())
    whole = index.search("darwin", k=99, group_by=options.get("group_by"))
    least, offset = options.get("min_score", -np.inf), options.get("offset", 0)
    expected = [hit.id for hit in whole if hit.score >= least][offset : offset + k]
    assert index.search("darwin", k=k, **options).ids == expected


def test_text_below_a_long_title_is_searchable(tiny_model: ModelFolder, tmp_path: Path) -> None:
    documents = [
        {"id": "d1", "title": "rome " * 40, "text": "newton"},
        {"id": "d2", "title": "rome " * 40, "text": ""},
    ]
    index = build(tmp_path / "i", tiny_model("static"), documents)
    assert index.counts == {"cut": 1} and index.stats()["passages"] == 2
    assert index.search("newton", semantic_mode="off").ids[0] == "d1"
    explanation = index.searcher().explain("newton", "d1")
    [match] = [match for match in explanation.matches if match.name == "newton"]
    assert match.postings and match.postings[0].document_tokens


def test_merge_of_a_segment_without_live_documents(tiny_model: ModelFolder, tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "i"), model=tiny_model())
    for number in range(10):  # one long document is replaced every other commit
        index.add([{"id": "x" if number % 2 else f"y{number}", "text": LONG if number % 2 else "rome"}])
        index.commit()
    index.merge().check(deep=True)
    assert len(index) == 6 and len(index.search("darwin evolution", k=99)) == 6


def test_group_by_of_mixed_types_does_not_depend_on_k(tiny_model: ModelFolder, tmp_path: Path) -> None:
    documents: list[dict[str, Any]] = [{"id": f"d{m}", "text": "rome", "m": m} for m in (1, "s")]
    index = build(tmp_path / "i", tiny_model(), documents)
    for k in (1, 10):
        with pytest.raises(citadel.FilterError, match="m"):
            index.search("rome", k=k, group_by="m")


@pytest.mark.parametrize("k", [0, 1, np.uint8(128)])
def test_groups_of_an_empty_index(k: Any, tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "i"), model="bm25")
    assert index.search("rome", k=k, group_by="x").ids == []
    index.add([{"id": "d1", "text": "rome"}])
    assert index.commit().search("rome", k=k, group_by="x").ids == (["d1"] if k else [])
