"""The batch teacher: BM25 over tokens, its use in the objective, and training runs with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from citadel.errors import InputError
from citadel.routing.bm25 import idf, tf_part
from citadel.train import losses
from citadel.train.config_tables import LossPart
from citadel.train.loop import train
from citadel.train.objective import Labels, objective
from citadel.train.ragged import Ragged
from citadel.train.teacher import TokenBm25, document_frequency
from scripts.smoke_data import HIDDEN
from tests.support.tiny import tiny_citadel, tiny_texts
from tests.support.training import Configs, tiny_run

PAD, CLS, VOCABULARY = 0, 1, 9
words = st.lists(st.integers(2, VOCABULARY - 1), min_size=1, max_size=6)


@given(st.lists(words, min_size=1, max_size=5), st.lists(words, min_size=1, max_size=3))
def test_token_bm25_matches_the_formula(passages: list[list[int]], queries: list[list[int]]) -> None:
    bm25 = TokenBm25.of(Ragged.of([[CLS, *passage] for passage in passages]), VOCABULARY, [PAD, CLS])
    result = bm25(_padded(queries), _padded(passages))
    average = sum(map(len, passages)) / len(passages)
    frequency = {token: sum(token in passage for passage in passages) for token in range(VOCABULARY)}
    for b, query in enumerate(queries):
        for d, passage in enumerate(passages):
            expected = sum(
                idf(len(passages), frequency[token]) * tf_part(passage.count(token), len(passage), average)
                for token in query
            )
            assert result[b, d].item() == pytest.approx(expected, rel=1e-5)


def _padded(rows: list[list[int]]) -> torch.Tensor:
    width = max(map(len, rows)) + 1
    return torch.tensor([[CLS, *row, *[PAD] * (width - 1 - len(row))] for row in rows])


def test_document_frequency_does_not_depend_on_chunk_size() -> None:
    rng = np.random.default_rng(3)
    table = Ragged.of([rng.integers(0, VOCABULARY, size=rng.integers(0, 7)).tolist() for _ in range(50)])
    assert document_frequency(table, VOCABULARY, 7).tolist() == document_frequency(table, VOCABULARY).tolist()


def test_distillation_over_the_whole_batch() -> None:
    model = tiny_citadel("dynamic")
    queries = model.encode(*tiny_texts(model, 3, 0, query=True), query=True, dtype=torch.float64)
    passages = model.encode(*tiny_texts(model, 6, 1), dtype=torch.float64)
    teacher = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    labels = Labels(2, teacher=teacher, anchor=teacher + 1)
    whole, semantic = model.score(queries, passages), model.semantic_score(queries, passages)
    assert semantic is not None
    part = LossPart(distillation="kl", teacher="t", anchor=0.5, teacher_temperature=0.02, soft_label=0.25)
    result = objective(model, queries, passages, labels, part, 1.0)
    # The batch teacher has already divided its logits by the temperature.
    torch.testing.assert_close(result["distillation"], 0.25 * losses.kl_distillation_loss(whole, teacher))
    torch.testing.assert_close(result["anchor"], 0.5 * losses.kl_distillation_loss(semantic, teacher + 1))
    margin = LossPart(distillation="margin-mse", teacher="t")
    result = objective(model, queries, passages, labels, margin, 1.0)
    own = [losses.own_group(scores, 2) for scores in (whole, teacher)]
    torch.testing.assert_close(result["distillation"], losses.margin_mse_loss(*own))


def _terms(out: Path) -> list[dict[str, Any]]:
    records = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    return [record for record in records if "loss" in record]


def test_student_equal_to_its_teacher_has_zero_loss(config: Configs, backbone: Path, tmp_path: Path) -> None:
    model = {"router": "none", "token_dimension": 0, "semantic_dimension": HIDDEN, "pooling": "mean"}
    start = {"semantic_start": "identity", "semantic_scale": 10.0, "warm_up_steps": 0, "active_keys": 0}
    loss = {
        "teacher": str(backbone),
        "distillation": "kl",
        "anchor": 1.0,
        "teacher_temperature": 0.01,
    }
    optimizer = {"lr": 1e-3, "warm_up": 0.0}
    tables: dict[str, dict[str, Any]] = {
        "model": model | {"normalize_pooled": True},
        "router": start,
        "loss": loss,
        "optimizer": optimizer,
    }
    train(tiny_run(config, **tables), tmp_path / "out")
    first, *_, last = _terms(tmp_path / "out")
    assert first["anchor"] == pytest.approx(0, abs=1e-5)
    assert first["distillation"] == pytest.approx(0, abs=1e-5)
    assert last["anchor"] > 1e-4  # the hard labels pull away from the teacher


def test_bm25_changes_distillation_but_not_the_anchor(
    config: Configs, backbone: Path, tmp_path: Path
) -> None:
    loss = {"teacher": str(backbone), "distillation": "kl", "anchor": 1.0}
    for name, weight in (("without", 0.0), ("with", 2.0)):
        train(tiny_run(config, loss=loss | {"bm25": weight}), tmp_path / name)
    without, fused = (_terms(tmp_path / name)[0] for name in ("without", "with"))
    assert without["anchor"] == fused["anchor"] and without["distillation"] != fused["distillation"]


def test_two_equal_teachers_double_the_logits(config: Configs, backbone: Path, tmp_path: Path) -> None:
    twin = shutil.copytree(backbone, tmp_path / "twin")
    loss = {"teacher": str(backbone), "distillation": "kl", "anchor": 1.0}
    changes: dict[str, dict[str, Any]] = {
        "once": {},
        "both": {"teachers": {str(twin): 1.0}},
        "twice": {"teacher_temperature": 0.5},
    }
    for name, change in changes.items():
        train(tiny_run(config, loss=loss | change), tmp_path / name)
    once, both, twice = (_terms(tmp_path / name)[0] for name in ("once", "both", "twice"))
    for term in ("anchor", "distillation"):
        assert both[term] == pytest.approx(twice[term], rel=1e-5)
        assert both[term] != pytest.approx(once[term], rel=1e-5)


def test_teacher_with_another_vocabulary_is_rejected(config: Configs, backbone: Path, tmp_path: Path) -> None:
    other = shutil.copytree(backbone, tmp_path / "other")
    text = (other / "tokenizer.json").read_text()
    assert '"heart"' in text
    (other / "tokenizer.json").write_text(text.replace('"heart"', '"liver"'))
    with pytest.raises(InputError, match="the teacher's vocabulary differs"):
        train(tiny_run(config, loss={"teacher": str(other), "distillation": "kl"}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"loss": {"teacher": "t"}}, "loss.teacher is not used"),
        ({"loss": {"bm25": 0.1}}, "need loss.teacher"),
        ({"loss": {"teachers": {"t": 1.0}}}, "need loss.teacher"),
        ({"loss": {"teacher": "t", "distillation": "kl", "bm25": -1.0}}, "loss.bm25 is -1.0"),
        ({"loss": {"teacher": "t", "distillation": "kl", "teachers": {"s": -1}}}, "loss.teachers.s is -1"),
        ({"loss": {"teacher": "t", "distillation": "kl", "teachers": {"t": 1}}}, "names loss.teacher again"),
        ({"loss": {"teacher": "t", "distillation": "kl"}, "data": {"scores": "s.jsonl"}}, "are both set"),
    ],
)
def test_invalid_teacher_settings(config: Configs, tables: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        config(**tables)
