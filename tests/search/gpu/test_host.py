"""Host side of a GPU search: list lookup, query rows, results."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from citadel.search.gpu import lists as gpu_lists
from citadel.search.gpu.batch import write_rows
from citadel.search.gpu.lists import CodedRows, DeviceLists
from citadel.search.gpu.packed_scores import decode, pack, unpack


def device_lists(keys: list[int]) -> DeviceLists:
    """Lists of one posting each; the second has a row of skips."""
    count = len(keys)
    nothing = torch.zeros(count, dtype=torch.int32)
    rows = CodedRows("fp16", torch.zeros(count, 1, dtype=torch.float16), None)
    starts, skip_rows = np.arange(count), np.where(np.arange(count) == 1, 0, -1)
    given = np.array(keys, np.uint32), starts, np.ones(count, np.int64), np.ones(count, np.float32)
    return DeviceLists(*given, nothing, rows, None, skip_rows, nothing[:, None])


@pytest.mark.parametrize("max_key", [0, 1 << 22])
def test_key_lookup_with_and_without_table(max_key: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_lists, "MAX_TABLE_KEY", max_key)
    lists = device_lists([3, 7, 9]).find(np.array([9, 2, 3, 3, 10, 4_294_967_295, 7], np.uint32))
    assert lists.tolist() == [2, -1, 0, 0, -1, -1, 1]


def test_key_lookup_without_lists() -> None:
    assert device_lists([]).find(np.array([0, 5], np.uint32)).tolist() == [-1, -1]


def test_spans_of_lists_and_of_missing_lists() -> None:
    assert device_lists([3, 7]).spans.take([1, -1, 0], axis=1).tolist() == [[1, 0, 0], [2, 0, 1], [0, -1, -1]]


def test_zero_vector_and_unused_rows() -> None:
    rows, factors = np.full((3, 2), 9, np.int8), np.full(3, 9, np.float32)
    write_rows("int8", np.array([[0, 0], [-254, 2]], np.float32), rows, factors)
    assert rows.tolist() == [[0, 0], [-127, 1], [9, 9]]
    assert factors.tolist() == [0, 2, 9]


def test_decoded_scores_do_not_alias_the_buffer() -> None:
    for scores in ([2.5], [2.5, -1.0]):
        buffer = pack(torch.tensor(scores), torch.arange(len(scores))).numpy()
        numbers, decoded = decode(buffer)
        buffer[:] = 0
        assert numbers.tolist() == list(range(len(scores)))
        assert decoded.tolist() == scores


def test_decode_rows_with_negative_scores() -> None:
    scores = torch.tensor([[3.0, 0.5, 0.0], [1.0, -0.25, -8.0]])
    buffer = torch.cat(
        [pack(scores, torch.tensor([[5, 4_000_000_000, 0], [1, 2, 3]])), torch.zeros(2, 1).long()], 1
    )
    numbers, decoded = decode(buffer.numpy()[:, :-1])
    assert numbers.tolist() == [[5, 4_000_000_000, 0], [1, 2, 3]]
    assert decoded.tolist() == scores.tolist()
    assert unpack(buffer.numpy()[1, :-1])[1].tolist() == [1.0, -0.25, -8.0]
