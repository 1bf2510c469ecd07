"""`citadel distill`: a student with fewer layers comes close to its teacher, in the teacher's space."""

from __future__ import annotations

import itertools
import json
import runpy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from citadel.encode.config import BackboneConfig, ModelConfig, load_config
from citadel.encode.encoder import Encoder
from citadel.errors import InputError
from citadel.model.checkpoint import load_model, save_model
from citadel.model.citadel import Citadel
from citadel.model.export import export
from citadel.progress import silent
from citadel.text.corpus import read_corpus
from citadel.train.students import loop
from citadel.train.students.config import DistillConfig, parse_distill_config
from citadel.train.students.extra import read_extra
from citadel.train.students.loop import StudentRun, distill, set_up, train_step
from citadel.train.students.match import same_key
from citadel.train.students.model import load_teacher
from citadel.train.students.skipped import hardly_routed, skipped_tokens
from citadel.train.tokens import load_tokenizer
from tests.support.children import ROOT
from tests.train.conftest import WORDS, write_fixed_backbone

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "skipped_tokens.py"))
Configs = Callable[..., DistillConfig]


@pytest.fixture(scope="session")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random BERT that reads half of the words letter by letter."""
    return write_fixed_backbone(tmp_path_factory.mktemp("backbone"), WORDS[::2])


@pytest.fixture(scope="session")
def teacher(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random teacher of three layers, in the space `tiny-space`."""
    folder = tmp_path_factory.mktemp("teacher")
    size = json.loads((backbone / "config.json").read_text())["vocab_size"]
    shape = BackboneConfig(size, hidden=16, layers=3, heads=2, intermediate=32, positions=64)
    special: dict[str, Any] = {"cls_id": 2, "sep_id": 3, "pad_id": 0, "mask_id": 4}
    config = ModelConfig(
        "dynamic", shape, "teacher", 4, 8, "mean", True, tau=0.1, query_length=16, document_length=32,
        route_separator=False, space="tiny-space", **special,
    )  # fmt: skip
    torch.manual_seed(3)
    model = Citadel(config)
    with torch.no_grad():
        model.embeddings.word.mul_(20)
        for head in (model.semantic, model.token):
            assert head is not None
            head.weight.mul_(8)
    save_model(model, folder, backbone / "tokenizer.json")
    return folder


@pytest.fixture
def student(folder: Path, teacher: Path) -> Configs:
    """Make a config over the five passages; arguments are tables of changes."""
    tomli_w = pytest.importorskip(
        "tomli_w", reason="tomli-w is not installed: `pip install citadel-ir[train]`"
    )

    def maker(**changes: Any) -> DistillConfig:
        tables: dict[str, Any] = {
            "name": "student",
            "seed": 5,
            "teacher": str(teacher),
            "student": {"layers": [0, 2]},
            "data": {"folder": str(folder), "query_length": 12, "passage_length": 32, "held_out": False},
            "batch": {"tokens": 96, "pairs": 4, "queries": 8, "cut": 16, "long": 0.5, "bank": 12},
            "optimizer": {"steps": 6, "lr": 3e-3},
            "run": {"log_every": 1, "checkpoint_every": 2, "device": "cpu", "evaluate_at_end": False},
        }
        for name, change in changes.items():
            tables[name] = {**tables.get(name, {}), **change} if isinstance(change, dict) else change
        return parse_distill_config(tomli_w.dumps(tables))

    return maker


def logged(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


# Training


def test_student_comes_closer_to_its_teacher(student: Configs, tmp_path: Path) -> None:
    out = distill(student(optimizer={"steps": 36}, run={"checkpoint_every": 0}), tmp_path / "out")
    steps = [record for record in logged(out) if "states" in record]
    for name in ("states", "router", "tokens", "semantic"):
        assert sum(step[name] for step in steps[-6:]) < 0.5 * sum(step[name] for step in steps[:6]), name
    assert {"same_key", "same_key_queries", "distinct_keys", "largest_share", "learning_rate"} <= set(
        steps[0]
    )


@pytest.mark.parametrize(("name", "rate"), [("scores", 3e-4), ("weights", 1e-3), ("semantic_scores", 1e-3)])
def test_each_loss_of_scores_falls_alone(name: str, rate: float, student: Configs, tmp_path: Path) -> None:
    others = ("states", "router", "tokens", "weights", "semantic", "semantic_scores", "scores")
    loss = dict.fromkeys(others, 0.0) | {name: 1.0}
    config = student(loss=loss, batch={"cycle": ["pairs"]}, optimizer={"steps": 90, "lr": rate})
    run = set_up(config, tmp_path / "out", False, silent)
    with torch.no_grad():
        assert run.student.semantic is not None
        run.student.semantic.weight.mul_(-0.5)  # far from the teacher
        for parameter in run.student.layers.parameters():
            parameter.mul_(0.5)
    train_step(run, run.batches.batch(0))  # fills the bank
    before = _total(name, run)
    for step in range(90):
        run.step = step
        train_step(run, run.batches.batch(step % 8))
        run.update()
    assert _total(name, run) < 0.5 * before


def _total(name: str, run: StudentRun) -> float:
    """A term summed over the same batches: batches of this size differ more than training changes them."""
    total = sum(float(train_step(run, run.batches.batch(step)).terms[name]) for step in range(8))
    run.optimizer.zero_grad()
    return total


def test_student_has_the_space_and_frozen_words_of_its_teacher(
    student: Configs, teacher: Path, tmp_path: Path
) -> None:
    out = distill(student(), tmp_path / "out")
    small, whole = load_model(out), load_model(teacher)
    assert small.config.space == "tiny-space" and small.config.backbone.layers == 2
    assert replace(small.config, name="teacher", backbone=whole.config.backbone) == whole.config
    assert torch.equal(small.embeddings.word, whole.embeddings.word)
    for name in ("layers.1.feedforward.up.weight", "embeddings.position", "semantic.weight", "router.bias"):
        other = name.replace("layers.1", "layers.2")
        assert not torch.equal(small.state_dict()[name], whole.state_dict()[other]), name


def test_student_with_all_layers_has_no_loss(student: Configs, tmp_path: Path) -> None:
    run = set_up(student(student={"layers": [0, 1, 2]}), tmp_path / "out", False, silent)
    for step in range(6):
        result = train_step(run, run.batches.batch(step))
        for name, term in result.terms.items():
            assert abs(float(term)) < 1e-5, name
    assert run.scored is not None
    queries, passages = run.scored
    assert same_key(queries) == same_key(passages) == 1.0


def test_student_starts_from_an_earlier_one(student: Configs, tmp_path: Path) -> None:
    earlier = distill(student(), tmp_path / "earlier")
    [exported] = export(earlier, tmp_path / "model", "int8")
    config = student(student={"start": str(exported), "key_margin": 0.5})
    run = set_up(config, tmp_path / "out", False, silent)
    given = load_model(exported).state_dict() | {"embeddings.word": load_model(earlier).embeddings.word}
    assert all(torch.equal(tensor, given[name]) for name, tensor in run.student.state_dict().items())
    assert run.student.config.key_margin == 0.5 and run.student.config.space == "tiny-space"
    again = distill(config, tmp_path / "again")
    assert "started from an earlier student of teacher" in (again / "card.md").read_text()
    assert run.start is not None
    assert run.fingerprint != config.fingerprint(run.teacher.digest, "other weights")
    with pytest.raises(InputError, match="no student of this teacher and these layers: backbone differ"):
        set_up(student(student={"start": str(earlier), "layers": [0]}), tmp_path / "out", False, silent)


def test_tokens_without_keys_are_skipped_in_documents(
    student: Configs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("citadel.train.students.skipped._FEWEST", 1)
    run = set_up(student(student={"skip": 1.0}), tmp_path / "set-up", False, silent)
    passages = run.data.passages
    every = {token for row in range(len(passages)) for token in passages[row].tolist()} - {2, 3}
    assert set(load_config(distill(run.config, tmp_path / "all")).skipped_tokens) == every
    assert load_config(distill(student(), tmp_path / "none")).skipped_tokens == ()
    assert run.student.config.tau == 0.1
    run.student.config = replace(run.student.config, tau=5.0)  # no weight is above it
    few = skipped_tokens(run.student, run.corpus, run.marker, 1e-9, 0, run.dtype)
    assert set(few) == every


def test_tokens_are_counted_with_the_trained_student(
    student: Configs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights: list[dict[str, torch.Tensor]] = []

    def counted(model: Citadel, *_: object) -> tuple[int, ...]:
        weights.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return 7, 9

    monkeypatch.setattr(loop, "skipped_tokens", counted)
    out = distill(student(), tmp_path / "out")
    assert load_config(out).skipped_tokens == (7, 9)
    trained, [given] = load_model(out).state_dict(), weights
    assert all(torch.equal(tensor, given[name]) for name, tensor in trained.items())


def test_script_counts_with_the_exported_weights(
    student: Configs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("citadel.train.students.skipped._FEWEST", 1)
    run = set_up(student(), tmp_path / "set-up", False, silent)
    [folder] = export(distill(student(), tmp_path / "out"), tmp_path / "model", "int8")
    encoder = Encoder(folder, threads=1)
    with read_corpus(str(Path(run.config.data.folder, "passages.jsonl"))) as corpus:
        texts = [document.encoded_text for document, _ in corpus]
    total, keyed = SCRIPT["count"](encoder, texts)
    given = encoder.encode_documents(texts)
    inner = [text.ids[1:-1].tolist() for text in encoder.tokenizer.documents(texts)]
    expected = Counter[int]()
    for ids, text in zip(inner, given, strict=True):
        assert text.tokens is not None
        expected.update(ids[token] for token in set(text.tokens.tolist()))
    assert {id: int(total[id]) for id in np.flatnonzero(total)} == Counter(itertools.chain(*inner))
    assert {id: int(keyed[id]) for id in np.flatnonzero(keyed)} == expected
    assert hardly_routed(total, keyed, 1.0) == tuple(sorted({*itertools.chain(*inner)}))


def test_student_can_be_exported(student: Configs, tmp_path: Path) -> None:
    out = distill(student(), tmp_path / "out")
    [folder] = export(out, tmp_path / "model", "int8")
    assert load_config(folder).space == "tiny-space"
    assert "A student of teacher" in (folder / "README.md").read_text()
    assert len(Encoder(folder, threads=1).encode_query("the heart").keys)


def test_minutes_limit_the_run(student: Configs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(10_000))
    monkeypatch.setattr("time.monotonic", lambda: float(next(seconds)))
    out = distill(student(optimizer={"steps": 0, "minutes": 1.0, "warm_up": 0.1}), tmp_path / "out")
    rates = [record["learning_rate"] for record in logged(out) if "learning_rate" in record]
    assert 5 < len(rates) < 60
    assert max(rates) > 2e-3 > 3e-4 > rates[-1]


def test_evaluation_of_both_sides_and_of_queries_only(
    student: Configs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("citadel.train.data.HELD_OUT", 2)
    models: list[tuple[int, int]] = []
    encode = Citadel.encode

    def noted(model: Citadel, *args: Any, query: bool = False, **how: Any) -> Any:
        models.append((query, model.config.backbone.layers))
        return encode(model, *args, query=query, **how)

    monkeypatch.setattr(Citadel, "encode", noted)
    config = student(data={"held_out": True}, run={"evaluate_at_end": True})
    figures = logged(distill(config, tmp_path / "out"))[-1]
    assert {"both nDCG@10", "queries only nDCG@10", "both postings"} <= set(figures)
    assert set(models) == {(True, 2), (False, 2), (False, 3)}


# Resume


def test_resumed_run_equals_uninterrupted_run(
    student: Configs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = distill(student(), tmp_path / "whole"), tmp_path / "stopped"

    class Killed(Exception):
        pass

    step = loop.train_step

    def failing(run: Any, batch: Any) -> Any:
        if run.step == 3:
            raise Killed
        return step(run, batch)

    monkeypatch.setattr(loop, "train_step", failing)
    with pytest.raises(Killed):
        distill(student(), out)
    with pytest.raises(InputError, match="--resume"):
        distill(student(), out)
    monkeypatch.setattr(loop, "train_step", step)
    with pytest.raises(InputError, match="another config"):
        distill(student(optimizer={"lr": 1e-4}), out, resume=True)
    distill(student(), out, resume=True)
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


# Batches


def test_batches_hold_the_texts_of_the_data(student: Configs, tmp_path: Path) -> None:
    run = set_up(student(batch={"cut": 64, "long": 0.0}), tmp_path / "out", False, silent)
    texts = {tuple(run.data.passages[row].tolist()) for row in range(len(run.data.passages))}
    for step in (1, 4, 7):
        batch = run.batches.batch(step)
        assert batch.kind == "passages"
        for group in batch.groups:
            ids, mask, padded = run.corpus.batch(group.spans)
            assert not padded or ids.shape[1] == 8
            for row, cells in zip(ids.tolist(), mask.sum(1).tolist(), strict=True):
                assert row[0] == 2 and row[cells - 1] == 3
                assert any(text[: cells - 1] == tuple(row[: cells - 1]) for text in texts)


def test_short_queries_are_words_of_passages(student: Configs, tmp_path: Path) -> None:
    config = student(batch={"words": 1.0, "crops": 0.0, "extra": 0.0, "queries": 64})
    run = set_up(config, tmp_path / "out", False, silent)
    tokenizer = load_tokenizer(run.teacher.folder)
    words = set()
    for group in run.batches.batch(2).groups:
        ids, mask, _ = run.corpus.batch(group.spans)
        for row, cells in zip(ids.tolist(), mask.sum(1).tolist(), strict=True):
            words.add(tokenizer.decode(row[1 : cells - 1]))
    assert all(1 <= len(text.strip(" .").split()) <= 3 for text in words)
    assert {"heart", "virus"} & {word for text in words for word in text.split()}


def test_sentences_are_queries(student: Configs, folder: Path, tmp_path: Path) -> None:
    config = student(batch={"words": 0.0, "crops": 0.0, "extra": 0.0, "sentences": 1.0, "queries": 64})
    run = set_up(config, tmp_path / "out", False, silent)
    tokenizer = load_tokenizer(run.teacher.folder)
    passages = run.data.passages
    whole = [tokenizer.decode(passages[row][1:-1].tolist()) for row in range(len(passages))]
    assert len(run.corpus.sentences)
    for group in run.batches.batch(2).groups:
        ids, mask, _ = run.corpus.batch(group.spans)
        for row, cells in zip(ids.tolist(), mask.sum(1).tolist(), strict=True):
            text = tokenizer.decode(row[1 : cells - 1])
            assert any(passage.startswith(text) or f". {text}" in passage for passage in whole)


def test_joined_texts_run_on_into_the_next_passage(student: Configs, tmp_path: Path) -> None:
    run = set_up(student(batch={"joined": 1.0, "tokens": 64}), tmp_path / "out", False, silent)
    passages = run.data.passages
    every = np.concatenate([passages[row][1:-1] for row in range(len(passages))]).tolist()
    for step in (1, 4, 7):
        [group] = run.batches.batch(step).groups
        assert 16 <= group.spans.lengths.min() == group.spans.lengths.max() <= 32
        ids, mask, padded = run.corpus.batch(group.spans)
        assert mask.all() and not padded
        for row in ids.tolist():
            assert row[0] == 2 and row[-1] == 3
            inner = row[1:-1]
            assert any(every[at : at + len(inner)] == inner for at in range(len(every)))


def test_near_pairs_have_neighbouring_passages(student: Configs, tmp_path: Path) -> None:
    run = set_up(student(batch={"near": 2, "pairs": 8}), tmp_path / "out", False, silent)
    examples, corpus = run.data.examples, run.corpus
    by_passage = sorted(examples.positive.tolist())
    following = {*zip(by_passage, [*by_passage[1:], by_passage[-1]], strict=True)}
    for step in range(5):
        chosen = run.batches._chosen(np.random.default_rng(step))
        positives = examples.positive[chosen].reshape(-1, 2).tolist()
        assert len(chosen) == 8 and {(first, second) for first, second in positives} <= following
    assert len(corpus.queries)


def test_extra_texts(student: Configs, folder: Path, tmp_path: Path) -> None:
    file = folder / "stubs.jsonl"
    file.write_text('{"text": "See also"}\nTable of contents\n')
    assert read_extra(str(file)) == ["See also", "Table of contents"]
    config = student(data={"extra": str(file)}, batch={"words": 0.0, "crops": 0.0, "extra": 1.0})
    run = set_up(config, tmp_path / "out", False, silent)
    assert len(run.corpus.extra) == 2
    spans = np.concatenate([group.spans.begins for group in run.batches.batch(2).groups])
    assert set(spans.tolist()) == set(run.corpus.extra.begins.tolist())
    file.write_text('{"txt": "See also"}\n')
    with pytest.raises(InputError, match=r'stubs.jsonl:1: the field "text" is missing'):
        read_extra(str(file))


# Errors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teacher": "nowhere"}, "there is no such teacher"),
        ({"space": "other"}, "the teacher's space is 'tiny-space', the config says 'other'"),
        ({"student": {"layers": [0, 9]}}, "names layer 9, the teacher has 3"),
        ({"student": {"start": "nowhere"}}, "no such student to start from"),
        ({"data": {"passage_length": 128}}, "the backbone takes 64 tokens"),
        ({"data": {"extra": "missing.txt"}}, "data.extra: no such file"),
    ],
)
def test_invalid_runs(changes: dict[str, Any], message: str, student: Configs, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        distill(student(**changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"student": {"layers": [2, 0]}}, "student.layers is"),
        ({"batch": {"cycle": ["texts"]}}, "batch.cycle is 'texts'"),
        ({"batch": {"cycle": []}}, "batch.cycle is"),
        ({"batch": {"words": 0.9, "crops": 0.9}}, "above 1"),
        ({"batch": {"sentences": 0.9}}, "above 1"),
        ({"batch": {"near": 0}}, "batch.near is 0"),
        ({"student": {"key_margin": 0.0}}, "student.key_margin is 0.0"),
        ({"optimizer": {"steps": 0}}, "optimizer.steps and optimizer.minutes"),
        ({"loss": {"kl": 1.0}}, "unknown key 'loss.kl'"),
        ({"seed": -1}, "seed must be"),
        ({"data": {"extra": 3}}, "data.extra is 3"),
    ],
)
def test_invalid_configs(changes: dict[str, Any], message: str, student: Configs) -> None:
    with pytest.raises(InputError, match=message):
        student(**changes)


def test_space_of_a_run_must_be_named(teacher: Path, tmp_path: Path) -> None:
    model = load_model(teacher)
    model.config = replace(model.config, space="")
    save_model(model, tmp_path, teacher / "tokenizer.json")
    with pytest.raises(InputError, match="a run without a space"):
        load_teacher(str(tmp_path), "")
    assert load_teacher(str(tmp_path), "named").space == "named"
    with pytest.raises(InputError, match="is no name"):
        load_teacher(str(tmp_path), "not a name")
