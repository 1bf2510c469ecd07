"""`hit.relevance` and `min_relevance` with the installed model."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

import citadel
from citadel.encode.locate import default_model

pytestmark = pytest.mark.skipif(default_model() is None, reason="the default model is not installed")

TEXTS = {
    "wing": "the lift and drag of a thin wing in supersonic flow",
    "layer": "heat transfer in a laminar boundary layer on a flat plate",
    "buckling": "buckling of thin cylindrical shells under axial load",
}
GOOD, OFF_TOPIC = "lift of a wing in supersonic flow", "best pizza in Naples"


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[citadel.Searcher]:
    with citadel.Index.create(tmp_path_factory.mktemp("aeronautics"), model="default") as index:
        index.add([{"id": id, "text": text} for id, text in TEXTS.items()])
        yield index.commit().searcher()


def test_an_off_topic_query_has_no_good_match(searcher: citadel.Searcher) -> None:
    good, poor = searcher.search(GOOD)[0], searcher.search(OFF_TOPIC)[0]
    assert good.id == "wing"
    assert good.relevance is not None
    assert poor.relevance is not None
    assert poor.relevance < 0.05 < 0.5 < good.relevance <= 1.0


def test_relevance_follows_the_order_of_the_hits(searcher: citadel.Searcher) -> None:
    values = [hit.relevance or 0.0 for hit in searcher.search(GOOD)]
    assert len(values) == len(TEXTS)
    assert values == sorted(values, reverse=True)


def test_every_way_to_search_gives_the_same_relevance(searcher: citadel.Searcher) -> None:
    alone = [hit.relevance for hit in searcher.search(GOOD)]
    [prepared] = searcher.prepare([GOOD])
    assert [hit.relevance for hit in searcher.search_prepared(prepared)] == alone
    assert [hit.relevance for hit in searcher.search_batch([GOOD]).hits[0]] == alone
    assert [hit.relevance for hit in searcher.search(GOOD, offset=1)] == alone[1:]
    assert [hit.relevance for hit in copy.copy(searcher).search(GOOD)] == alone
    assert searcher.search(GOOD)[0].to_dict()["relevance"] == alone[0]


def test_min_relevance_leaves_out_poor_hits(searcher: citadel.Searcher) -> None:
    first = searcher.search(GOOD)[0].relevance
    assert searcher.search(GOOD, min_relevance=first).ids == ["wing"]
    assert len(searcher.search(GOOD, min_relevance=0)) == len(TEXTS)
    assert searcher.search(OFF_TOPIC, min_relevance=0.1).ids == []


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), True, "0.5", 10**400])
def test_a_wrong_min_relevance_is_refused(searcher: citadel.Searcher, value: Any) -> None:
    with pytest.raises(citadel.UsageError, match="min_relevance must be a number from 0 to 1"):
        searcher.search(GOOD, min_relevance=value)


def test_a_search_by_tokens_alone_has_no_relevance(searcher: citadel.Searcher) -> None:
    assert searcher.search(GOOD, semantic_mode="off")[0].relevance is None
    with pytest.raises(citadel.UsageError, match="use min_score"):
        searcher.search(GOOD, semantic_mode="off", min_relevance=0.5)


def test_bm25_has_no_relevance(tmp_path: Any) -> None:
    index = citadel.Index.create(tmp_path, model="bm25")
    index.add([{"id": "d1", "text": "E = mc²"}])
    hits = index.commit().search("mc²")
    assert hits[0].relevance is None
    assert "relevance" not in hits[0].to_dict()
    with pytest.raises(citadel.UsageError, match="min_relevance needs"):
        index.search("mc²", min_relevance=0.5)
