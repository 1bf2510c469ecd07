"""Refining a model: stubs are capped, short queries are drawn, function words of queries have no keys."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from citadel.encode.config import load_config
from citadel.encode.encoder import Encoder
from citadel.errors import InputError
from citadel.model.checkpoint import WEIGHTS, load_model
from citadel.model.export import export
from citadel.progress import silent
from citadel.text.function_words import FUNCTION_WORDS, function_word_ids
from citadel.train.data import make_data
from citadel.train.hubs import HubBatches, capped
from citadel.train.loop import train
from citadel.train.stubs import draw_stub
from citadel.train.tokens import load_tokenizer
from tests.support.training import Configs

MODEL = {"router": "dynamic", "token_dimension": 4, "semantic_dimension": 8, "document_keys": 3}
HUBS = {"stubs": 8, "short_queries": 3, "word_queries": 2}


@pytest.fixture
def start(config: Configs, tmp_path: Path) -> Path:
    """A model trained for two steps."""
    shape = config(model=MODEL, optimizer={"steps": 2}, run={"evaluate_at_end": False})
    return train(shape, tmp_path / "start", meter=silent)


def refined(config: Configs, start: Path, out: Path, resume: bool = False, **changes: dict[str, Any]) -> Path:
    tables: dict[str, dict[str, Any]] = {
        "model": {**MODEL, "backbone": str(start)},
        "hubs": HUBS,
        "loss": {"alpha": 0.0, "beta": 0.0},
        "optimizer": {"steps": 3, "lr": 1e-3},
        "run": {"log_every": 1, "evaluate_at_end": False},
    }
    for name, change in changes.items():
        tables[name] = {**tables.get(name, {}), **change}
    return train(config(**tables), out, resume=resume, meter=silent)


def test_a_stub_is_capped_by_a_quantile_of_the_passages() -> None:
    scores = torch.tensor([[4.0, 1.0, 2.0, 3.0, 5.0, 9.0, 0.5, 9.0]])  # five passages, three stubs
    caps = torch.tensor([[0.25, 0.5, float("nan")]])
    assert capped(scores, caps).tolist() == [[4.0, 1.0, 2.0, 3.0, 5.0, 2.0, 0.5, 9.0]]


def test_batches_append_short_queries_and_stubs(config: Configs, backbone: Path) -> None:
    tokenizer = load_tokenizer(backbone)
    part = config(hubs=HUBS)
    batches = HubBatches(make_data(part, tokenizer), part, tokenizer)
    one, again = batches.batch(5), batches.batch(5)
    assert one.stubs is not None and one.stubs.shape == (2 + 3 + 2, 8)
    assert len(one.query_ids) == 7 and len(one.passage_ids) == 2 * 3 + 8
    assert np.array_equal(one.query_ids, again.query_ids) and np.array_equal(
        one.passage_ids, again.passage_ids
    )
    special = {batches.data.special.cls, batches.data.special.sep}
    for row, mask in zip(one.query_ids[2:], one.query_mask[2:], strict=True):
        text = row[mask > 0]
        assert {text[0], text[-1]} == special and len(text) > 2
        assert not special & set(text[1:-1].tolist())


def test_a_stub_that_shares_a_word_with_the_query_is_not_capped(config: Configs, backbone: Path) -> None:
    tokenizer = load_tokenizer(backbone)
    part = config(hubs=HUBS)
    batches = HubBatches(make_data(part, tokenizer), part, tokenizer)
    texts = [np.array(tokenizer.encode(text).ids) for text in ("what pumps blood", "the", "blood", "copper")]
    assert batches._shared(texts[:2], texts[2:]).tolist() == [[True, False], [False, False]]


def test_stubs_lose_against_the_passages(config: Configs, start: Path, tmp_path: Path) -> None:
    """The excess of the stubs over their caps falls, and word embeddings stay as they were."""
    out = refined(config, start, tmp_path / "out", optimizer={"steps": 40, "lr": 2e-3, "batch": 2})
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    excess = [record["stubs"] for record in records if "stubs" in record]
    assert sum(excess[-5:]) < 0.5 * sum(excess[:5])
    before, after = load_model(start).state_dict(), load_model(out).state_dict()
    assert torch.equal(before["embeddings.word"], after["embeddings.word"])
    assert not torch.equal(before["layers.0.attention.qkv.weight"], after["layers.0.attention.qkv.weight"])


def test_refining_resumes_to_the_same_weights(config: Configs, start: Path, tmp_path: Path) -> None:
    whole = refined(config, start, tmp_path / "whole", run={"checkpoint_every": 2})
    part = tmp_path / "part"
    shutil.copytree(whole, part, ignore=shutil.ignore_patterns("model.safetensors", "log.jsonl"))
    shutil.copytree(whole / "checkpoint-00000002", part / "checkpoint-00000002", dirs_exist_ok=True)
    resumed = refined(config, start, part, run={"checkpoint_every": 2}, resume=True)
    assert (resumed / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()
    assert [json.loads(line)["step"] for line in (resumed / "log.jsonl").read_text().splitlines()] == [3]


def test_function_words_of_a_query_have_no_key(config: Configs, start: Path, tmp_path: Path) -> None:
    out = refined(config, start, tmp_path / "out")
    ids = load_config(out).unrouted_query_tokens
    assert ids == function_word_ids(load_tokenizer(out).get_vocab()) and ids
    export(out, tmp_path / "model", "fp32")
    encoder = Encoder(tmp_path / "model")
    [query] = encoder.tokenizer.queries(["what pumps the blood"])
    words = [encoder.tokenizer.token(id) for id in query.ids[query.routed].tolist()]
    assert "the" not in words and "what" not in words and words
    [document] = encoder.tokenizer.documents(["what pumps the blood"])
    assert "the" in [encoder.tokenizer.token(id) for id in document.ids[document.routed].tolist()]


def test_function_words_can_keep_their_keys(config: Configs, start: Path, tmp_path: Path) -> None:
    out = refined(config, start, tmp_path / "out", hubs={"route_function_words": True})
    assert load_config(out).unrouted_query_tokens == ()


def test_a_public_backbone_is_refused(config: Configs, backbone: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\[hubs\] refines a trained model"):
        refined(config, backbone, tmp_path / "out")


def test_stubs_are_short_and_varied() -> None:
    rng = np.random.default_rng(0)
    texts = [draw_stub(rng) for _ in range(2000)]
    assert all(0 < len(text) < 60 and text == text.strip() for text in texts)
    assert len(set(texts)) > 600


def test_function_words_are_lower_case_words() -> None:
    assert all(word == word.lower() and word.isalpha() for word in FUNCTION_WORDS)
    assert {"how", "was", "the", "in"} <= FUNCTION_WORDS and not {"jet", "error", "us"} & FUNCTION_WORDS


def test_the_offset_of_documents_is_trained_and_exported(
    config: Configs, start: Path, tmp_path: Path
) -> None:
    out = refined(
        config,
        start,
        tmp_path / "run",
        model={"document_offset": 6},
        optimizer={"steps": 20, "offset_lr": 0.05},
    )
    model = load_model(out)
    assert model.offset is not None
    assert bool(model.offset.direction.any())
    assert bool(model.offset.outer.weight.any())  # zero before training
    export(out, tmp_path / "exported")
    encoder = Encoder(tmp_path / "exported")
    document, query = encoder.encode_documents(["a text"])[0], encoder.encode_queries(["a text"])[0]
    assert document.semantic is not None and query.semantic is not None
    moved = query.semantic - document.semantic
    direction = model.offset.direction.numpy()
    amount = moved @ direction / (direction @ direction)
    assert amount > 0
    np.testing.assert_allclose(moved, amount * direction, atol=1e-5)
