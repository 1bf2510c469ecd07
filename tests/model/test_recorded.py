"""Single queries equal the batch path to the last bit, with and without a recording."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: `pip install citadel-ir[train]`")
import torch

from citadel.encode.tokenizer import Encoding
from citadel.model import recorded
from citadel.model.citadel import Citadel
from citadel.model.recorded import QueryShape, SingleQueries, SingleQuery
from citadel.model.texts import TorchTexts, query_encoder
from citadel.types import RoutedTokens
from tests.support.models import ROUTERS, tiny_config, write_checkpoint

# With [CLS] and [SEP]: 3, 8 (a full width), 9, 16 (the maximum) and 2 tokens.
TEXTS = ["rome", "who proposed the history of rome", "who proposed the history of rome !", "a b c " * 9, ""]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "dynamic", tiny_config("dynamic"))


def assert_same(one: RoutedTokens, other: RoutedTokens) -> None:
    for field in fields(RoutedTokens):
        np.testing.assert_array_equal(
            getattr(one, field.name), getattr(other, field.name), err_msg=field.name
        )


@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_single_query_equals_the_batch_path(tmp_path: Path, router: str) -> None:
    folder = write_checkpoint(tmp_path / router, tiny_config(router))
    plain, alone = TorchTexts(folder, "cpu", dtype=torch.float32), query_encoder(str(folder), "cpu,cpu")
    for text in TEXTS:
        assert_same(alone.encode_queries([text])[0], plain.encode_queries([text])[0])


def test_query_shapes(folder: Path) -> None:
    lengths = [len(text) for text in TorchTexts(folder, "cpu").tokenizer.queries(TEXTS)]
    assert lengths == [3, 8, 9, 16, 2]
    assert [QueryShape.of(length) for length in lengths] == [
        (8, True),
        (8, False),
        (16, True),
        (16, False),
        (8, True),
    ]


def test_outputs_are_not_overwritten_by_the_next_query(folder: Path) -> None:
    encoder = query_encoder(str(folder), "cpu")
    [first] = encoder.encode_queries(["rome"])
    assert first.semantic is not None
    before = first.semantic.copy()
    [second] = encoder.encode_queries(["darwin"])
    np.testing.assert_array_equal(first.semantic, before)
    assert second.semantic is not None and (second.semantic != before).any()


def test_concurrent_queries(folder: Path) -> None:
    encoder = query_encoder(str(folder), "cpu")
    wanted = [encoder.encode_queries([text])[0] for text in TEXTS]
    with ThreadPoolExecutor(4) as pool:
        for position, [actual] in enumerate(pool.map(lambda text: encoder.encode_queries([text]), TEXTS * 8)):
            assert_same(actual, wanted[position % len(TEXTS)])


class Replay:
    """Stand-in for a CUDA graph without a GPU."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.replay = mock.Mock(side_effect=run)


def singles(folder: Path) -> tuple[TorchTexts, SingleQueries]:
    encoder = query_encoder(str(folder), "cpu")
    assert encoder._single is not None
    encoder._single.record = True
    return encoder, encoder._single


def test_each_shape_is_recorded_once_and_replayed(folder: Path) -> None:
    encoder, single = singles(folder)
    plain = TorchTexts(folder, "cpu", dtype=torch.float32)
    with mock.patch.object(
        recorded, "record", side_effect=lambda device, run, beside: _recorded(run)
    ) as record:
        for text in TEXTS * 2:
            assert_same(encoder.encode_queries([text])[0], plain.encode_queries([text])[0])
    assert record.call_count == 4
    assert single.record


def _recorded(run: Callable[[], None]) -> Replay:
    run()  # as a recording's warm-up does
    return Replay(run)


@pytest.mark.parametrize("error", [RuntimeError("no capture\nhere"), torch.cuda.OutOfMemoryError("full")])
def test_failed_recording_is_logged_once(
    folder: Path, error: RuntimeError, caplog: pytest.LogCaptureFixture
) -> None:
    encoder, _ = singles(folder)
    plain = TorchTexts(folder, "cpu", dtype=torch.float32)
    with caplog.at_level(logging.WARNING), mock.patch.object(recorded, "record", side_effect=error):
        for text in TEXTS:
            assert_same(encoder.encode_queries([text])[0], plain.encode_queries([text])[0])
    [message] = caplog.messages
    assert "recording a CUDA graph failed" in message
    assert "\n" not in message


def test_long_queries_use_the_batch_path(folder: Path) -> None:
    encoder = query_encoder(str(folder), "cpu")
    with (
        mock.patch("citadel.model.texts.MAX_TOKENS", 8),
        mock.patch.object(SingleQueries, "outputs") as outputs,
    ):
        encoder.encode_queries([TEXTS[2]])
    outputs.assert_not_called()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_encoding_does_not_synchronise_with_the_device(router: str, padded: bool) -> None:
    """Synchronising would break a recording. Meta tensors have no values, so that reading one fails."""
    model = Citadel(tiny_config(router)).to("meta").eval()
    model.prepare_router(torch.float32)
    block = torch.zeros(3, 8, dtype=torch.int64, device="meta")
    with torch.no_grad():
        ids, mask, routed = block[:, None]
        model.encode(ids, mask, routed.bool(), query=True, learning=False, padded=padded)
        with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
            model.encode(ids, mask, routed.bool(), query=True, learning=False)  # reads the mask


def test_load_clears_the_previous_query(folder: Path) -> None:
    query = SingleQuery(TorchTexts(folder, "cpu")._model, QueryShape(8, True), torch.float32)
    for ids in ([2, 9, 9, 9, 9, 3], [2, 7, 3]):
        query.load(Encoding(np.array(ids), (), np.array([False] + [True] * (len(ids) - 1))))
    assert query._input_array.tolist() == [
        [2, 7, 3, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 0, 0, 0],
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_replay_equals_the_batch_path(tmp_path: Path, router: str) -> None:
    folder = write_checkpoint(tmp_path / router, tiny_config(router))
    plain, alone = TorchTexts(folder, "cuda", dtype=torch.float32), query_encoder(str(folder), "cuda")
    for text in TEXTS * 2:
        assert_same(alone.encode_queries([text])[0], plain.encode_queries([text])[0])
    assert alone._single is not None
    assert alone._single.record
