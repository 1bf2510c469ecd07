"""Tables of pq in plain torch; those of the kernel are in `interpreted.py`."""

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
from tests.search.gpu import whole_steps

CPU = torch.device("cpu")


def made(book: Codebook, vectors: Floats) -> Tables:
    tables, centroids = allocate_tables(torch.from_numpy(vectors), len(book.centroids)), load_centroids(CPU, book)
    assert centroids is not None
    tabulate(tables, centroids)
    return tables


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from(whole_steps.SHAPES))
def test_they_are_what_the_order_of_additions_says(seed: int, shape: tuple[int, int]) -> None:
    book, vectors = whole_steps.book(seed, *shape), whole_steps.vectors(seed, 5, shape[0] * shape[1])
    tables = made(book, vectors)
    for token, vector in enumerate(vectors):
        whole, step = whole_steps.table(book, vector)
        assert tables.rows[token].tolist() == whole.reshape(-1).tolist()
        assert tables.steps[token].item() == step


def test_halves_go_to_the_even_number() -> None:
    tables = made(*whole_steps.halves())
    assert tables.rows[0, :7].tolist() == [32766, 0, 2, 2, 0, -2, 0]
    assert tables.steps.tolist() == [1.0]


def test_without_a_normal_step_all_is_0() -> None:
    """2e-38 is a normal number, and 32,766th of it is not."""
    book, vectors = whole_steps.halves()
    tables = made(book, vectors * np.float32(2e-38 / 32766))
    assert (tables.rows.count_nonzero().item(), tables.steps.tolist()) == (0, [0.0])


def test_an_index_without_a_codebook_has_no_centroids() -> None:
    assert load_centroids(CPU, None) is None
