"""Batches: deterministic by seed and step, sampled by weight, without false negatives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citadel.errors import InputError
from citadel.train.batches import Batches, TrainingBatch
from citadel.train.config import TrainConfig
from citadel.train.data import Data, crc
from citadel.train.data_cache import load_data
from citadel.train.tokens import load_tokenizer
from tests.train.conftest import PAIRS, TEXTS

Make = Callable[..., TrainConfig]
Write = Callable[[str, Any], str]


@pytest.fixture
def load(config: Make, backbone: Path) -> Callable[..., tuple[Data, TrainConfig]]:
    def loader(**changes: Any) -> tuple[Data, TrainConfig]:
        made = config(**changes)
        return load_data(made, load_tokenizer(backbone)), made

    return loader


Load = Callable[..., tuple[Data, TrainConfig]]


def same(one: TrainingBatch, two: TrainingBatch) -> bool:
    columns = ("query_ids", "query_mask", "passage_ids", "passage_mask", "allowed")
    return all(np.array_equal(getattr(one, name), getattr(two, name)) for name in columns)


def row_of(data: Data, tokens: np.ndarray, mask: np.ndarray) -> int:
    """Row of the first passage with these tokens."""
    expected = tokens[mask > 0].tolist()
    return next(row for row in range(len(data.passages)) if data.passages[row].tolist() == expected)


def test_shapes_and_positive_first(load: Load) -> None:
    data, config = load()
    batch = Batches(data, config).batch(0)
    assert batch.query_ids.shape == batch.query_mask.shape == (2, 16)
    assert batch.passage_ids.shape == batch.passage_mask.shape == (6, 16)  # 14 tokens, rounded up
    assert batch.allowed.shape == (2, 6)
    assert batch.teacher is None
    order = Batches(data, config)
    for position in range(2):
        positive = int(data.examples.positive[order.example(position)])
        assert (
            row_of(data, batch.passage_ids[3 * position], batch.passage_mask[3 * position])
            == data.twin[positive]
        )


def test_fixed_lengths(load: Load) -> None:
    data, config = load()
    batch = Batches(data, config, fixed=True).batch(0)
    assert (batch.query_ids.shape, batch.passage_ids.shape) == ((2, 12), (6, 24))


def test_truncated_texts_keep_their_separator(load: Load) -> None:
    data, _ = load(data={"passage_length": 5})
    assert all(len(data.passages[row]) == 5 for row in range(5))
    assert {int(data.passages[row][-1]) for row in range(5)} == {data.special.sep}


def test_batch_depends_on_seed_and_step_only(load: Load) -> None:
    data, config = load(data={"crops": 0.5})
    one, two = Batches(data, config), Batches(data, config)
    _ = one.batch(0)  # earlier calls do not matter
    assert all(same(one.batch(step), two.batch(step)) for step in (5, 1, 3))
    other = Batches(data, replace(config, seed=8))
    assert not all(same(one.batch(step), other.batch(step)) for step in range(4))


def test_iterate_resumes_at_a_step(load: Load) -> None:
    data, config = load()
    batches = Batches(data, config)
    whole, rest = list(islice(batches.iterate(0), 7)), list(islice(batches.iterate(4), 3))
    assert all(same(one, two) for one, two in zip(whole[4:], rest, strict=True))


def test_error_in_the_thread_is_raised(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    data, config = load()
    batches = Batches(data, config)
    monkeypatch.setattr(batches, "batch", lambda step: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        next(batches.iterate())


def test_two_ranks_share_one_batch(load: Load) -> None:
    data, config = load()
    whole = Batches(data, config, fixed=True).batch(3)
    halves = [Batches(data, config, rank, 2, fixed=True).batch(3) for rank in (0, 1)]
    assert np.array_equal(np.concatenate([half.query_ids for half in halves]), whole.query_ids)
    assert np.array_equal(np.concatenate([half.passage_ids for half in halves]), whole.passage_ids)


def test_batch_not_divisible_by_processes(load: Load) -> None:
    data, config = load()
    with pytest.raises(InputError, match=r"optimizer\.batch 2 cannot be shared by 3"):
        Batches(data, config, 0, 3)


def test_every_example_occurs_once_per_epoch(load: Load) -> None:
    data, config = load()
    batches = Batches(data, config)
    assert batches.epoch_size == 4
    epochs = [[batches.example(4 * epoch + position) for position in range(4)] for epoch in range(6)]
    assert all(sorted(epoch) == [0, 1, 2, 3] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_weights_of_kinds_and_sources(load: Load) -> None:
    data, config = load(data={"kinds": {"term": 0.5, "question": 2}, "sources": {"s-d2": 0}})
    batches = Batches(data, config)
    queries = {int(row): position for position, row in enumerate(data.examples.query)}
    assert len(data.examples) == 3  # without d2
    assert batches.epoch_size == 3  # 2 + ½ + ½
    seen = Counter(batches.example(position) for position in range(3 * 100))
    assert seen[queries[0]] == 200
    assert seen[queries[2]] + seen[queries[3]] == 100 and 30 < seen[queries[2]] < 70


def test_unknown_kind_is_an_error(load: Load) -> None:
    with pytest.raises(
        InputError, match=r"data\.kinds names 'terms', which is not in the data: choose from 'question'"
    ):
        load(data={"kinds": {"terms": 0.5}})
    with pytest.raises(InputError, match="no pair is left"):
        load(data={"kinds": {"term": 0, "question": 0}})


def test_held_out_pairs_are_never_drawn(load: Load, write: Write) -> None:
    ids = [f"p{number}" for number in range(400)]
    held = [id for id in ids if crc(id) % 100 == 0]
    assert held
    write("many/passages.jsonl", [{"id": id, "text": f"text {id}"} for id in ids])
    folder = str(
        Path(write("many/pairs.jsonl", [{"query": f"about {id}", "positive": id} for id in ids])).parent
    )
    data, config = load(data={"folder": folder, "held_out": True})
    assert data.ids.some(data.held_out.positive.tolist()) == held
    batches = Batches(data, config)
    drawn = {int(data.examples.positive[batches.example(position)]) for position in range(batches.epoch_size)}
    assert sorted(drawn) == [row for row, id in enumerate(ids) if id not in held]
    everything, _ = load(data={"folder": folder, "held_out": False})
    assert len(everything.examples) == 400


def test_max_pairs(load: Load) -> None:
    data, _ = load(data={"max_pairs": 2})
    assert data.examples.positive.tolist() == [0, 1]


# Masked negatives


def test_copy_of_the_positive_is_masked(load: Load, write: Write) -> None:
    """d5 has the text of d1, so neither is a negative of the other's query."""
    rows = [{"query": "what pumps blood", "positive": "d1"}, {"query": "night and day", "positive": "d5"}]
    data, config = load(data={"pairs": write("two.jsonl", rows), "group": 1})
    batch = Batches(data, config).batch(0)
    assert batch.allowed.tolist() == [[True, False], [False, True]]


def test_other_known_positive_is_masked(load: Load, write: Write) -> None:
    rows = [{"query": "metal", "positive": "d4"}, {"query": "metal", "positive": "d3"}]
    data, config = load(data={"pairs": write("two.jsonl", rows), "group": 1})
    assert Batches(data, config).batch(0).allowed.tolist() == [[True, False], [False, True]]


def test_different_passages_are_allowed(load: Load, write: Write) -> None:
    rows = [{"query": "metal", "positive": "d4"}, {"query": "lens", "positive": "d3"}]
    data, config = load(data={"pairs": write("two.jsonl", rows), "group": 1})
    assert Batches(data, config).batch(0).allowed.all()


def mined(write: Write, **fields: Any) -> str:
    line = {"query": PAIRS[0][0], "positive": "d1", "negatives": ["d2", "d3", "d4"], "scores": [9, 8, 1]}
    return write("negatives.jsonl", [line | fields])


def negatives_of(data: Data, config: TrainConfig, steps: int) -> list[set[str]]:
    """Negatives of the first query in each batch of one query."""
    batches = Batches(data, replace(config, optimizer=replace(config.optimizer, batch=1)))
    groups = []
    for step in range(steps):
        if data.examples.query[batches.example(step)] == 0:
            batch = batches.batch(step)
            rows = [
                row_of(data, *pair)
                for pair in zip(batch.passage_ids[1:], batch.passage_mask[1:], strict=True)
            ]
            groups.append({list(TEXTS)[row] for row in rows})
    return groups


def test_hard_negatives_are_sampled_from_the_mined_list(load: Load, write: Write) -> None:
    data, config = load(data={"negatives": mined(write)})
    result = negatives_of(data, config, 80)
    assert all(len(group) == 2 and group <= {"d2", "d3", "d4"} for group in result)
    assert set.union(*result) == {"d2", "d3", "d4"}


def test_margin_filters_false_negatives(load: Load, write: Write) -> None:
    """The positive scores 8.5; with a margin of 1, d2 and d3 above 7.5 are false negatives."""
    file = mined(write, positive_score=8.5)
    data, config = load(data={"negatives": file, "margin": 1.0, "group": 2})
    assert set.union(*negatives_of(data, config, 60)) == {"d4"}
    assert data.dropped is not None
    two = Batches(data, replace(config, optimizer=replace(config.optimizer, batch=4))).batch(0)
    order = Batches(data, replace(config, optimizer=replace(config.optimizer, batch=4)))
    first = next(position for position in range(4) if data.examples.query[order.example(position)] == 0)
    for position in range(4):
        positive = data.ids[int(data.examples.positive[order.example(position)])]
        assert two.allowed[first, 2 * position] == (positive not in ("d2", "d3"))


def test_passages_dropped_by_mining_are_masked(load: Load, write: Write) -> None:
    data, config = load(
        data={"negatives": mined(write, negatives=["d4"], scores=[1], dropped=["d2"]), "group": 1}
    )
    order = Batches(data, replace(config, optimizer=replace(config.optimizer, batch=4)))
    batch = order.batch(0)
    ids = [data.ids[int(data.examples.positive[order.example(position)])] for position in range(4)]
    assert not batch.allowed[ids.index("d1"), ids.index("d2")]
    assert batch.allowed.sum() == 15


def test_unranked_positive_has_no_negatives(load: Load, write: Write) -> None:
    data, _ = load(data={"negatives": mined(write, positive_score=None), "margin": 0.0})
    assert data.negatives is not None and len(data.negatives[int(data.examples.pair[0])]) == 0


# Teachers and crops


def scored(write: Write, **fields: Any) -> str:
    line = {"query": PAIRS[0][0], "positive": "d1", "passages": ["d1", "d2", "d3"], "scores": [3, 2, 1]}
    return write("scores.jsonl", [line | fields])


def test_teacher_scores_match_their_passages(load: Load, write: Write) -> None:
    data, config = load(data={"scores": scored(write), "group": 4})
    batches = Batches(data, config)
    for step in range(4):
        batch = batches.batch(step)
        assert batch.teacher is not None
        for position in range(2):
            row = batch.teacher[position]
            if data.examples.query[batches.example(2 * step + position)] != 0:
                assert np.isnan(row).all()
                continue
            rows = [
                row_of(data, batch.passage_ids[4 * position + n], batch.passage_mask[4 * position + n])
                for n in (1, 2)
            ]
            assert row[0] == 3 and row[1:3].tolist() == [{1: 2.0, 2: 1.0}[result] for result in rows]
            assert np.isnan(row[3])  # a random passage, not scored by the teacher


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"passages": ["d2", "d1", "d3"]}, "the positive is not the first passage"),
        ({"passages": ["d1", "d9", "d3"]}, "'d9' is not in the collection"),
        ({"scores": [1]}, "not lists of equal length"),
        ({"scores": [1, 2, "x"]}, "a score is not a number"),
        ({"query": 7}, "query or positive is missing"),
        ({"query": "of other data"}, "no line belongs to a pair"),
    ],
)
def test_bad_line_of_scores(load: Load, write: Write, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        load(data={"scores": scored(write, **fields)})
    assert caught.value.source.endswith("scores.jsonl")


def test_missing_negatives_file_is_an_error(load: Load) -> None:
    with pytest.raises(InputError, match=r"data\.negatives: no such file"):
        load(data={"negatives": "none.jsonl"})


def test_crops_are_sentences_of_the_positive(load: Load, write: Write) -> None:
    data, config = load(data={"crops": 1.0, "scores": scored(write)})
    batches = Batches(data, config)
    for step in range(6):
        batch = batches.batch(step)
        for position in range(2):
            query = batch.query_ids[position][batch.query_mask[position] > 0].tolist()
            positive = data.passages[
                int(data.examples.positive[batches.example(2 * step + position)])
            ].tolist()
            inner = query[1:-1]
            assert any(positive[at : at + len(inner)] == inner for at in range(len(positive)))
            assert query[0] == data.special.cls and query[-1] == data.special.sep
        assert batch.teacher is not None and np.isnan(batch.teacher).all()  # scores of another query


def test_share_of_crops(load: Load) -> None:
    data, config = load(data={"crops": 0.5})
    batches = Batches(data, config)
    known = {tuple(data.queries[row].tolist()) for row in range(len(data.queries))}
    drawn = [batches.batch(step) for step in range(50)]
    rows = [tuple(b.query_ids[n][b.query_mask[n] > 0].tolist()) for b in drawn for n in (0, 1)]
    assert 25 < sum(row in known for row in rows) < 75


def test_source_with_weight_zero_is_unseen(load: Load, write: Write) -> None:
    passages = [{"id": "d1", "source": "book", "text": "one"}, {"id": "d2", "source": "web", "text": "two"}]
    write("two/passages.jsonl", passages)
    pairs = [{"query": "first", "positive": "d1"}, {"query": "second", "positive": "d2"}]
    folder = str(Path(write("two/pairs.jsonl", pairs)).parent)
    data, _ = load(data={"folder": folder, "sources": {"web": 0}, "held_out": False})
    assert data.ids.some(data.examples.positive.tolist()) == ["d1"]
    assert set(data.unseen) == {"web"} and data.ids.some(data.unseen["web"].positive.tolist()) == ["d2"]
