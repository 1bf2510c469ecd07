"""Measures by hand, and evaluation on held-out pairs against the training score."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from citadel.train.data import crc
from citadel.train.data_cache import load_data
from citadel.train.evaluate import evaluate, measures, rank_of
from citadel.train.inputs import Marker
from citadel.train.tokens import load_tokenizer
from tests.support.training import Configs

WORDS = [
    "heart", "pumps", "blood", "virus", "alive", "host", "cell", "light",
    "bends", "lens", "angle", "glass", "copper", "heat", "current", "wood",
]  # fmt: skip


def test_measures_by_hand() -> None:
    result = measures(torch.tensor([1, 3, 11, 100, 101, 0]))
    assert result["RR@10"] == pytest.approx((1 + 1 / 3) / 6)
    assert result["nDCG@10"] == pytest.approx((1 + 1 / math.log2(4)) / 6)
    assert result["R@100"] == pytest.approx(4 / 6)


def test_cutoff_at_rank_ten() -> None:
    assert measures(torch.tensor([10]))["RR@10"] == pytest.approx(0.1)
    assert measures(torch.tensor([11])) == {"nDCG@10": 0.0, "RR@10": 0.0, "R@100": 1.0}


@pytest.mark.parametrize(
    ("top", "answers", "rank"),
    [
        ([7, 5], {7}, 1),
        ([5, 7], {7}, 2),
        ([5, 7], {5, 7}, 1),  # another answer comes first
        ([4, 4, 3, 7], {7}, 3),  # a passage and its twin count once
        ([4, 3], {7}, 0),
        ([-1, -1, 7], {7}, 2),
        ([], {7}, 0),
    ],
)
def test_rank_of(top: list[int], answers: set[int], rank: int) -> None:
    assert rank_of(7, top, answers) == rank


@pytest.fixture
def many(tmp_path: Path, backbone: Path, config: Configs) -> Any:
    """300 passages, some of them held out by the checksum of their id."""
    rng = np.random.default_rng(0)
    ids = [f"p{number}" for number in range(300)]
    texts = [" ".join(rng.choice(WORDS, 6)) for _ in ids]
    rows = [{"id": id, "source": "s", "text": text} for id, text in zip(ids, texts, strict=True)]
    pairs = [
        {"query": " ".join(text.split()[:3]), "positive": id, "kind": "k"}
        for id, text in zip(ids, texts, strict=True)
    ]
    folder = tmp_path / "many"
    folder.mkdir()
    (folder / "passages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    made = config(data={"folder": str(folder), "held_out": True})
    return load_data(made, load_tokenizer(backbone))


@pytest.fixture
def model_of() -> Callable[..., Any]:
    from citadel.encode.config import BackboneConfig
    from citadel.model.citadel import Citadel
    from tests.support.models import tiny_config

    def maker(data: Any, router: str) -> tuple[Citadel, Marker]:
        torch.manual_seed(0)
        size = int(data.passages.values[:].max()) + 1
        shape = BackboneConfig(size, hidden=32, layers=1, heads=2, intermediate=32, positions=40)
        ids = {f"{name}_id": id for name, id in data.special._asdict().items()}
        model = Citadel(tiny_config(router, backbone=shape, tau=0.0, **ids))
        return model.eval(), Marker(model.config, [])

    return maker


def test_held_out_and_training_pairs_are_disjoint(many: Any) -> None:
    held = [many.ids[row] for row in many.held_out.positive.tolist()]
    assert held and all(crc(id) % 100 == 0 for id in held)
    assert not any(crc(many.ids[row]) % 100 == 0 for row in many.examples.positive.tolist())


@pytest.mark.parametrize("router", ["static", "dynamic", "none"])
def test_evaluation_ranks_by_the_training_score(router: str, many: Any, model_of: Callable[..., Any]) -> None:
    from citadel.train.tokens import pad

    model, marker = model_of(many, router)
    result = evaluate(model, many, marker)
    rows = [many.passages[row] for row in range(len(many.passages))]
    held = many.held_out
    with torch.no_grad():
        marked = marker(
            *(torch.from_numpy(t) for t in pad([many.queries[int(q)] for q in held.query], 0)), query=True
        )
        queries = model.encode(*marked, query=True)
        passages = model.encode(*marker(*(torch.from_numpy(t) for t in pad(rows, 0))))
        order = model.score(queries, passages).argsort(dim=1, descending=True, stable=True)
    ranks = []
    for number, row in enumerate(order.tolist()):
        top = [int(many.twin[passage]) for passage in row[:132]]
        others = set(many.known[int(held.query[number])].tolist())
        ranks.append(rank_of(int(many.twin[held.positive[number]]), top, others))
    expected = measures(torch.tensor(ranks))
    assert {name: result[name] for name in expected} == pytest.approx(expected)
    assert max(expected.values()) > 0


@pytest.mark.parametrize("router", ["static", "none"])
def test_a_sample_of_passages(router: str, many: Any, model_of: Callable[..., Any]) -> None:
    """Fewer passages compete; the positives are always among them, and a sample of all is everything."""
    model, marker = model_of(many, router)
    whole, sampled = (evaluate(model, many, marker, passages=passages) for passages in (0, 40))
    assert sampled["RR@10"] >= whole["RR@10"]
    assert 0 < whole["R@100"] <= sampled["R@100"] == 1
    assert sampled != whole
    assert evaluate(model, many, marker, passages=300) == whole


def test_limit_and_absence_of_queries(many: Any, model_of: Callable[..., Any]) -> None:
    from dataclasses import replace

    model, marker = model_of(many, "static")
    assert evaluate(model, many, marker, queries=1)["R@100"] in (0.0, 1.0)
    none = replace(many, held_out=many.held_out.some(np.empty(0, np.int64)))
    assert evaluate(model, none, marker) == {}


def test_higher_tau_leaves_fewer_postings(many: Any, model_of: Callable[..., Any]) -> None:
    model, marker = model_of(many, "dynamic")
    assert (
        evaluate(model, many, marker, tau=0.5)["postings"]
        < evaluate(model, many, marker, tau=0.0)["postings"]
    )


def test_unseen_sources_are_measured(many: Any, model_of: Callable[..., Any]) -> None:
    from dataclasses import replace

    model, marker = model_of(many, "static")
    assert not many.unseen and "unseen nDCG@10" not in evaluate(model, many, marker)
    first = many.held_out.some(np.arange(1))
    result = evaluate(model, replace(many, unseen={"web": many.held_out, "book": first}), marker)
    assert result["unseen web nDCG@10"] == result["nDCG@10"] and result["unseen web R@100"] == result["R@100"]
    assert result["unseen nDCG@10"] == (result["unseen web nDCG@10"] + result["unseen book nDCG@10"]) / 2


@pytest.mark.parametrize("router", ["static", "dynamic", "none"])
def test_evaluation_does_not_depend_on_chunk_size(
    router: str, many: Any, model_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, marker = model_of(many, router)
    whole = evaluate(model, many, marker)
    monkeypatch.setattr("citadel.train.evaluate.PASSAGES", {"cpu": 7})
    progress: list[int] = []
    result = evaluate(model, many, marker, meter=lambda *_: nullcontext(progress.append))
    assert result == pytest.approx(whole)
    assert progress == sorted(progress) and progress[0] == 7 and progress[-1] == 300
