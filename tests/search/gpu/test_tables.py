"""pq tables in plain torch; `interpreted.py` tests those of the kernel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed: `pip install citadel-ir[gpu]`")
import torch

from citadel.index.codebook import Codebook
from citadel.search.gpu.pq_tables import Tables, allocate_tables, load_centroids, tabulate
from citadel.types import Floats
from tests.search.gpu import pq_definition

CPU = torch.device("cpu")


def tabulated(book: Codebook, vectors: Floats) -> Tables:
    tables, centroids = (
        allocate_tables(torch.from_numpy(vectors), len(book.centroids)),
        load_centroids(CPU, book),
    )
    assert centroids is not None
    tabulate(tables, centroids)
    return tables


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from(pq_definition.SHAPES))
def test_tables_equal_their_definition(seed: int, shape: tuple[int, int]) -> None:
    book, vectors = pq_definition.book(seed, *shape), pq_definition.vectors(seed, 5, shape[0] * shape[1])
    tables = tabulated(book, vectors)
    for token, vector in enumerate(vectors):
        rows, step = pq_definition.table(book, vector)
        assert tables.rows[token].tolist() == rows.reshape(-1).tolist()
        assert tables.steps[token].item() == step


def test_entries_round_half_to_even() -> None:
    tables = tabulated(*pq_definition.halves())
    assert tables.rows[0, :7].tolist() == [32766, 0, 2, 2, 0, -2, 0]
    assert tables.steps.tolist() == [1.0]


def test_subnormal_step_gives_zero_table() -> None:
    """2e-38 is a normal number, but 2e-38 / 32,766 is not."""
    book, vectors = pq_definition.halves()
    tables = tabulated(book, vectors * np.float32(2e-38 / 32766))
    assert (tables.rows.count_nonzero().item(), tables.steps.tolist()) == (0, [0.0])


def test_no_centroids_without_codebook() -> None:
    assert load_centroids(CPU, None) is None
