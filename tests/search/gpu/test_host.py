"""The host's part of a GPU search: list lookup, query rows, results."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from citadel.search.gpu import lists as gpu_lists
from citadel.search.gpu.batch import write_rows
from citadel.search.gpu.lists import CodedRows, DeviceLists
from citadel.search.gpu.packed_scores import decode, pack, unpack


def some(keys: list[int]) -> DeviceLists:
    """Lists of one posting each; the second has a row of skips."""
    count = len(keys)
    nothing = torch.zeros(count, dtype=torch.int32)
    rows = CodedRows("fp16", torch.zeros(count, 1, dtype=torch.float16), None)
    starts, skip_rows = np.arange(count), np.where(np.arange(count) == 1, 0, -1)
    given = np.array(keys, np.uint32), starts, np.ones(count, np.int64), np.ones(count, np.float32)
    return DeviceLists(*given, nothing, rows, None, skip_rows, nothing[:, None])


@pytest.mark.parametrize("tabled", [0, 1 << 22])
def test_keys_are_found_in_a_table_and_without_one(tabled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_lists, "MAX_TABLE_KEY", tabled)
    found = some([3, 7, 9]).find(np.array([9, 2, 3, 3, 10, 4_294_967_295, 7], np.uint32))
    assert found.tolist() == [2, -1, 0, 0, -1, -1, 1]


def test_no_key_is_found_among_none() -> None:
    assert some([]).find(np.array([0, 5], np.uint32)).tolist() == [-1, -1]


def test_spans_of_lists_and_of_none() -> None:
    assert some([3, 7]).spans.take([1, -1, 0], axis=1).tolist() == [[1, 0, 0], [2, 0, 1], [0, -1, -1]]


def test_a_vector_of_zeros_and_the_room_behind_it() -> None:
    rows, factors = np.full((3, 2), 9, np.int8), np.full(3, 9, np.float32)
    write_rows("int8", np.array([[0, 0], [-254, 2]], np.float32), rows, factors)
    assert rows.tolist() == [[0, 0], [-127, 1], [9, 9]]
    assert factors.tolist() == [0, 2, 9]


def test_answers_outlive_the_room_they_came_in() -> None:
    for scores in ([2.5], [2.5, -1.0]):
        room = pack(torch.tensor(scores), torch.arange(len(scores))).numpy()
        numbers, found = decode(room)
        room[:] = 0
        assert numbers.tolist() == list(range(len(scores)))
        assert found.tolist() == scores


def test_rows_of_a_batch_with_negative_scores() -> None:
    scores = torch.tensor([[3.0, 0.5, 0.0], [1.0, -0.25, -8.0]])
    room = torch.cat([pack(scores, torch.tensor([[5, 4_000_000_000, 0], [1, 2, 3]])), torch.zeros(2, 1).long()], 1)
    numbers, found = decode(room.numpy()[:, :-1])
    assert numbers.tolist() == [[5, 4_000_000_000, 0], [1, 2, 3]]
    assert found.tolist() == scores.tolist()
    assert unpack(room.numpy()[1, :-1])[1].tolist() == [1.0, -0.25, -8.0]
