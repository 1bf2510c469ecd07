"""Errors of the engine; results do not depend on threads and batches."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from citadel import _native

TWO_TOKENS = SimpleNamespace(
    keys=[4, 9],
    weights=np.array([1.0, 2.0], np.float32),
    vectors=None,
    semantic=None,
    norm=(np.float32(1), np.float32(0)),
)


def small(slow):
    """Key 4 in documents 0 and 2, key 9 in document 2 alone: document 2 scores 0.5 + 2 · 0.25."""
    lists = {4: [slow.Posting(0, 9, 1.0), slow.Posting(2, 9, 0.5)], 9: [slow.Posting(2, 9, 0.25)]}
    return slow.Data(3, "sparse", lists)


def test_ranking_by_hand(slow):
    numbers, scores, dots = slow.fast_search([small(slow), small(slow)], TWO_TOKENS, 10, floor=False)
    assert numbers.tolist() == [0, 2, 3, 5]  # ties by lower number; the second segment starts at 3
    assert scores.tolist() == [1.0, 1.0, 1.0, 1.0]
    assert dots == 6


def test_key_lookup_and_list_lengths(slow):
    snapshot = _native.Snapshot([slow.build(small(slow))], False, 0.0, 0.0)
    lists = snapshot.find_keys(np.array([9, 5, 4], np.uint32))
    assert lists.tolist() == [[1, -1, 0]]
    assert snapshot.list_lengths(lists).tolist() == [[1, 0, 2]]
    assert snapshot.find_terms([b"x"]).tolist() == [[-1]]


@pytest.mark.parametrize(
    "name", ["KEYS", "LIST_STARTS", "BLOCK_OFFSETS", "PACKED_DOCUMENTS", "VALUES", "WEIGHTS"]
)
def test_flipped_bit_is_reported_with_file_and_section(slow, name):
    data = small(slow)
    parts = []
    for section, array, crcs in slow.sections(data):
        flipped = array.copy()
        if section == name:
            flipped[0] ^= 1
        parts.append((section, flipped, crcs))

    def open_and_search() -> None:
        snapshot = _native.Snapshot([slow.build(data, parts)], False, 0.0, 0.0)
        snapshot.search(slow.native_query(snapshot, [data], TWO_TOKENS), 3)

    with pytest.raises(_native.CorruptError) as error:
        open_and_search()
    file, section, problem = str(error.value).split("\t")
    assert (file, section) == ("seg", name)
    assert "checksum" in problem


def test_missing_or_short_section_is_corrupt(slow):
    data = small(slow)
    whole = slow.sections(data)
    with pytest.raises(_native.CorruptError, match="seg\tVALUES\tis missing"):
        slow.build(data, [part for part in whole if part[0] != "VALUES"])
    short = [
        slow.section("VALUES", np.zeros(2, np.float16)) if part[0] == "VALUES" else part for part in whole
    ]
    with pytest.raises(_native.CorruptError, match="seg\tVALUES\thas 4 bytes, not 6"):
        slow.build(data, short)


def test_cancelled_search_raises_and_the_next_one_works(slow):
    data = small(slow)
    snapshot = _native.Snapshot([slow.build(data)], False, 0.0, 0.0)
    query = slow.native_query(snapshot, [data], TWO_TOKENS)
    before = snapshot.search(query, 3)[1].tolist()
    cancel = _native.Cancel()
    cancel.set()
    assert cancel.is_set()
    with pytest.raises(_native.CancelledError):
        snapshot.search(query, 3, cancel=cancel)
    assert snapshot.search(query, 3)[1].tolist() == before


def test_mismatched_queries_are_rejected(slow):
    data = small(slow)
    snapshot = _native.Snapshot([slow.build(data)], False, 0.0, 0.0)
    ones = np.ones(1, np.float32)
    with pytest.raises(ValueError, match="made for 2 segments"):
        snapshot.search(_native.Query(np.zeros((2, 1), np.int64), ones, None, None), 1)
    with pytest.raises(ValueError, match="list 7 does not exist"):
        snapshot.search(_native.Query(np.full((1, 1), 7, np.int64), ones, None, None), 1)
    with pytest.raises(ValueError, match="no semantic field"):
        snapshot.search(_native.Query(np.zeros((1, 1), np.int64), ones, None, ones), 1, semantic="exact")
    with pytest.raises(ValueError, match="not finite"):
        _native.Query(np.zeros((1, 1), np.int64), np.array([np.nan], np.float32), None, None)


def big(slow):
    """Three lists of 150,000 postings: enough for one query to use several threads."""
    rng = np.random.default_rng(6)
    lists = {}
    for key in (4, 9, 12):
        numbers = np.sort(rng.integers(0, 200_000, 150_000))
        lists[key] = [
            slow.Posting(int(n), 1, float(v)) for n, v in zip(numbers, rng.random(150_000), strict=True)
        ]
    return slow.Data(200_000, "sparse", lists)


def test_threads_and_batches_return_the_same_results(slow):
    data = big(slow)
    snapshot = _native.Snapshot([slow.build(data), slow.build(small(slow))], False, 0.0, 0.0)
    lists = snapshot.find_keys(np.array([4, 9, 12], np.uint32))
    queries = [_native.Query(lists, np.array([w, 1, 0.5], np.float32), None, None) for w in (1.0, 2.0, 3.0)]
    alone = [snapshot.search(query, 300) for query in queries]
    shared = [snapshot.search(query, 300, threads=2) for query in queries]
    for other in (
        shared,
        snapshot.search_batch(queries, 300),
        snapshot.search_batch(queries, 300, threads=2),
    ):
        for (numbers, scores, dots), (n, s, d) in zip(alone, other, strict=True):
            assert numbers.tolist() == n.tolist()
            assert scores.tobytes() == s.tobytes()
            assert dots == d
    from_threads: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: from_threads.append(snapshot.search(queries[0], 300)[1].tobytes()))
        for _ in "1234"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert from_threads == [alone[0][1].tobytes()] * 4


def test_unknown_instruction_set_is_an_error_at_first_use():
    code = "from citadel import _native; print('imported'); _native.instruction_set()"
    environment = {**os.environ, "CITADEL_ISA": "avx9", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout == "imported\n"
    assert "ValueError: instruction set 'avx9' cannot be used: this machine has portable" in done.stderr
    with pytest.raises(ValueError, match="avx9"):
        _native.use_instruction_set("avx9")
