"""The offset of documents: boilerplate loses, passages keep their scores, function words lose their keys."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from citadel.encode.config import load_config
from citadel.encode.encoder import Encoder
from citadel.errors import InputError
from citadel.model.checkpoint import load_model
from citadel.model.citadel import DocumentOffset
from citadel.model.export import export
from citadel.progress import silent
from citadel.text.function_words import FUNCTION_WORDS, function_word_ids
from citadel.train.config_tables import OffsetPart
from citadel.train.data import make_data
from citadel.train.loop import train
from citadel.train.offset import Texts, Vectors, fit
from citadel.train.short_texts import ShortTexts
from citadel.train.stubs import PHRASES, draw_stub
from citadel.train.tokens import load_tokenizer
from tests.support.training import Configs

MODEL = {"router": "dynamic", "token_dimension": 4, "semantic_dimension": 8, "document_keys": 3}
OFFSET = {"steps": 30, "stubs": 40, "lr": 0.05}


@pytest.fixture
def start(config: Configs, tmp_path: Path) -> Path:
    """A model trained for two steps."""
    shape = config(model=MODEL, optimizer={"steps": 2}, run={"evaluate_at_end": False})
    return train(shape, tmp_path / "start", meter=silent)


def fitted(config: Configs, start: Path, out: Path, **changes: dict[str, Any]) -> Path:
    tables: dict[str, dict[str, Any]] = {
        "model": {**MODEL, "backbone": str(start), "document_offset": 6},
        "offset": OFFSET,
        "optimizer": {"steps": 0},
        "run": {"evaluate_at_end": False},
    }
    for name, change in changes.items():
        tables[name] = {**tables.get(name, {}), **change}
    return train(config(**tables), out, meter=silent)


def test_boilerplate_loses_and_passages_keep_their_scores() -> None:
    """In a world where boilerplate points along the mean of all queries, as it does in dense models."""
    generator = torch.Generator().manual_seed(1)
    common = torch.zeros(16)
    common[0] = 3.0

    def texts(count: int, spread: float, length: int, along: float) -> Vectors:
        noise = torch.randn(count, 16, generator=generator) * spread
        noise[:, 0] = 0
        return Vectors(noise + along * common, torch.full((count, 1), length))

    passages, stubs = texts(600, 1.0, 80, 1.0), texts(64, 0.1, 4, 1.5)
    queries = passages.semantic * 0.5 + 0.5 * common
    every = Texts(passages, queries, stubs, texts(64, 1.0, 4, 1.0), texts(64, 1.0, 9, 1.0))
    offset = DocumentOffset(16, 16)
    offset.start(torch.Generator().manual_seed(1))
    mean = queries.mean(0)
    offset.direction.data.copy_(mean / (mean @ mean))
    wins = _wins(offset, every)
    fit(offset, every, OffsetPart(steps=300, neighbours=64), torch.Generator().manual_seed(1))
    assert wins > 0.3
    assert _wins(offset, every) < 0.02
    assert float(offset.amount(*passages).mean()) < 0.2 < 2.0 < float(offset.amount(*stubs).mean())


def _wins(offset: DocumentOffset, texts: Texts) -> float:
    """Share of the queries that a stub wins against 64 passages."""
    with torch.no_grad():
        best = (texts.queries @ offset(*texts.passages.some(torch.arange(64))).T).amax(1)
        return float(((texts.queries @ offset(*texts.stubs).T).amax(1) > best).float().mean())


def test_only_the_offset_changes(config: Configs, start: Path, tmp_path: Path) -> None:
    out = fitted(config, start, tmp_path / "out")
    before, after = load_model(start).state_dict(), load_model(out).state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert bool(after["offset.direction"].any()) and bool(after["offset.outer.weight"].any())
    [record] = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert record["step"] == 0 and {"stubs", "kept", "offset of passages"} <= set(record)


def test_equal_seeds_give_equal_offsets(config: Configs, start: Path, tmp_path: Path) -> None:
    one, two = (fitted(config, start, tmp_path / name) for name in ("one", "two"))
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()


def test_an_offset_is_fitted_after_training(config: Configs, backbone: Path, tmp_path: Path) -> None:
    """From a public backbone, and not while it trains."""
    out = fitted(config, backbone, tmp_path / "out", optimizer={"steps": 2})
    assert bool(load_model(out).state_dict()["offset.outer.weight"].any())


def test_an_offset_is_exported(config: Configs, start: Path, tmp_path: Path) -> None:
    out = fitted(config, start, tmp_path / "run")
    model = load_model(out)
    assert model.offset is not None
    export(out, tmp_path / "exported")
    encoder = Encoder(tmp_path / "exported")
    document, query = encoder.encode_documents(["a text"])[0], encoder.encode_queries(["a text"])[0]
    assert document.semantic is not None and query.semantic is not None
    moved = query.semantic - document.semantic
    direction = model.offset.direction.numpy()
    amount = moved @ direction / (direction @ direction)
    assert amount > 0
    np.testing.assert_allclose(moved, amount * direction, atol=1e-5)


def test_function_words_of_a_query_have_no_key(config: Configs, start: Path, tmp_path: Path) -> None:
    out = fitted(config, start, tmp_path / "out", model={"route_function_words": False})
    ids = load_config(out).unrouted_query_tokens
    assert ids == function_word_ids(load_tokenizer(out).get_vocab()) and ids
    export(out, tmp_path / "model", "fp32")
    encoder = Encoder(tmp_path / "model")
    [query] = encoder.tokenizer.queries(["what pumps the blood"])
    words = [encoder.tokenizer.token(id) for id in query.ids[query.routed].tolist()]
    assert "the" not in words and "what" not in words and words
    [document] = encoder.tokenizer.documents(["what pumps the blood"])
    assert "the" in [encoder.tokenizer.token(id) for id in document.ids[document.routed].tolist()]


def test_function_words_have_keys_by_default(config: Configs, start: Path, tmp_path: Path) -> None:
    assert load_config(fitted(config, start, tmp_path / "out")).unrouted_query_tokens == ()


def test_a_public_backbone_without_steps_is_refused(config: Configs, backbone: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"optimizer\.steps is 0: give steps, or a trained model"):
        fitted(config, backbone, tmp_path / "out")


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"model": {"document_offset": 0}}, r"model\.document_offset and offset\.steps need each other"),
        ({"offset": {"steps": 0}, "optimizer": {"steps": 1}}, r"model\.document_offset and offset\.steps"),
        ({"model": {"document_offset": 0}, "offset": {"steps": 0}}, r"optimizer\.steps and optimizer"),
        ({"offset": {"quantile": 1.5}}, r"offset\.quantile is 1\.5: give a number from 0 to 1"),
        ({"offset": {"lr": 0.0}}, r"offset\.lr is 0\.0: give a number above 0"),
        ({"model": {"route_function_words": 1}}, r"model\.route_function_words is 1, not of type bool"),
    ],
)
def test_contradictions_are_refused(
    config: Configs, start: Path, tmp_path: Path, tables: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        fitted(config, start, tmp_path / "out", **tables)


def test_short_texts_are_whole_words_of_the_passage(config: Configs, backbone: Path) -> None:
    tokenizer = load_tokenizer(backbone)
    data = make_data(config(), tokenizer)
    passages = [data.passages[row] for row in range(len(data.passages))]
    texts, rng = ShortTexts(tokenizer, passages), np.random.default_rng(1)
    for passage in passages * 20:
        text = tokenizer.decode(passage.tolist())
        words = set(re.findall(r"\w+|[^\w\s]", text))
        query = re.findall(r"\w+|[^\w\s]", tokenizer.decode(texts.query(passage, rng).tolist()))
        assert 1 <= len(query) <= 2 and set(query) <= words
        assert tokenizer.decode(texts.fragment(passage, rng).tolist()) in text


def test_stubs_are_short_and_varied() -> None:
    rng = np.random.default_rng(0)
    texts = [draw_stub(rng) for _ in range(2000)]
    assert all(0 < len(text) < 70 and text == text.strip() for text in texts)
    assert len(set(texts)) > 1000
    assert len(PHRASES) == len(set(PHRASES)) and all(phrase == phrase.strip() for phrase in PHRASES)


def test_function_words_are_lower_case_words() -> None:
    assert all(word == word.lower() and word.isalpha() for word in FUNCTION_WORDS)
    assert {"how", "was", "the", "in"} <= FUNCTION_WORDS and not {"jet", "error", "us"} & FUNCTION_WORDS
