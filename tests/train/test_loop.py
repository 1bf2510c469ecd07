"""Training: a killed run resumes to the same weights, bit for bit on a CPU."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from citadel.errors import InputError
from citadel.model.checkpoint import load_model
from citadel.progress import silent
from citadel.train import loop
from citadel.train.health import TrainingStopped
from citadel.train.loop import train
from citadel.train.objective import objective
from citadel.train.run import Run, learning_rate, set_up
from tests.support.seeds import NIGHT, seeded
from tests.support.training import Configs, Trainer, complaint, order, the_trainer, tiny_run

KILLS = 12 if NIGHT else 5
STEPS = 5
KILLED = -9


trainer = pytest.fixture(scope="session", name="trainer")(the_trainer)


@pytest.fixture
def tiny(config: Configs) -> Configs:
    return partial(tiny_run, config)


def losses(out: Path) -> dict[int, float]:
    """Logged loss by step; a repeated step must have logged the same loss."""
    result: dict[int, float] = {}
    for line in (out / "log.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "loss" in record:
            assert result.setdefault(record["step"], record["loss"]) == record["loss"]
    return result


def same_end(out: Path, reference: Path) -> None:
    """Assert equal weights, byte for byte, equal losses and no temporary files."""
    assert (out / "model.safetensors").read_bytes() == (reference / "model.safetensors").read_bytes()
    assert losses(out) == losses(reference) and len(losses(out)) == STEPS
    assert not list(out.glob("*.tmp"))


# Resume


@pytest.mark.parametrize(
    "optimizer",
    [{"average": 0.0}, {"average": 0.5}, {"accumulate": 2, "average": 0.0}, {"cache": 2, "average": 0.9}],
    ids=["plain", "averaged", "accumulated", "cached"],
)
def test_resumed_run_equals_uninterrupted_run(
    optimizer: dict[str, Any], tiny: Configs, trainer: Trainer, tmp_path: Path
) -> None:
    config, whole, out = tiny(optimizer=optimizer), tmp_path / "whole", tmp_path / "stopped"
    assert trainer.run(order(config, whole)) == [0], complaint(whole)
    for stop in (3, 1):  # killed after three checkpoints, then after one more
        assert trainer.run(order(config, out, stop=stop, resume=True)) == [KILLED], complaint(out)
        assert not (out / "model.safetensors").exists()
    assert sorted(path.name for path in out.glob("checkpoint-*")) == [
        "checkpoint-00000003",
        "checkpoint-00000004",
    ]
    assert trainer.run(order(config, out, resume=True)) == [0], complaint(out)
    same_end(out, whole)


def test_resume_after_a_kill_during_writes(tiny: Configs, trainer: Trainer, tmp_path: Path) -> None:
    config, whole = tiny(), tmp_path / "whole"
    assert trainer.run(order(config, whole)) == [0], complaint(whole)
    calls = int(Path(f"{whole}.calls").read_text())
    assert calls > 40
    chosen = seeded("kills of training").choices(range(1, calls), k=KILLS - 2)
    for kill in (calls - 1, 2, *chosen):  # in the last renames, in the first write, anywhere
        out = tmp_path / f"killed-{kill}"
        assert trainer.run(order(config, out, kill=kill)) == [KILLED], complaint(out)
        if not (out / "model.safetensors").exists():  # otherwise it was killed after the last write
            assert trainer.run(order(config, out, resume=True)) == [0], complaint(out)
        same_end(out, whole)
        shutil.rmtree(out)


def test_resume_without_a_checkpoint_starts_again(tiny: Configs, trainer: Trainer, tmp_path: Path) -> None:
    config, out, whole = tiny(), tmp_path / "out", tmp_path / "whole"
    assert trainer.run(order(config, whole), order(config, out, kill=1)) == [0, KILLED]
    assert trainer.run(order(config, out, resume=True)) == [0], complaint(out)
    same_end(out, whole)


def test_truncated_checkpoint_is_skipped(tiny: Configs, trainer: Trainer, tmp_path: Path) -> None:
    config, out, whole = tiny(), tmp_path / "out", tmp_path / "whole"
    assert trainer.run(order(config, whole), order(config, out, stop=4)) == [0, KILLED]
    file = out / "checkpoint-00000004" / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert trainer.run(order(config, out, resume=True)) == [0]
    assert "checkpoint-00000004: damaged, skipped" in complaint(out)
    same_end(out, whole)


# Rejected runs


def test_resume_with_another_config_changes_nothing(tiny: Configs, trainer: Trainer, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert trainer.run(order(tiny(), out, stop=1)) == [KILLED]
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="another config"):
        train(tiny(optimizer={"lr": 2e-3}), out, resume=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_resume_with_other_logging(tiny: Configs, trainer: Trainer, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert trainer.run(order(tiny(), out, stop=1)) == [KILLED]
    train(tiny(run={"log_every": 2, "checkpoint_every": 3}), out, resume=True)
    assert set(losses(out)) == {1, 2, 4, 5}


def test_existing_run_is_not_overwritten(tiny: Configs, tmp_path: Path) -> None:
    out = train(tiny(), tmp_path / "out")
    before = (out / "model.safetensors").read_bytes()
    for resume in (False, True):
        with pytest.raises(InputError, match="finished model"):
            train(tiny(), out, resume=resume)
    assert (out / "model.safetensors").read_bytes() == before
    (out / "model.safetensors").unlink()
    with pytest.raises(InputError, match="--resume"):
        train(tiny(), out)


# A run


def test_folder_holds_model_and_log(tiny: Configs, tmp_path: Path) -> None:
    out = train(tiny(run={"evaluate_every": 2}), tmp_path / "out")
    model = load_model(out)
    assert (
        model.config.name == "tiny" and (out / "tokenizer.json").is_file() and (out / "train.toml").is_file()
    )
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert records[0]["step"] == 0 and "shift" in records[0]
    logged = next(record for record in records if "loss" in record)
    assert {"contrastive", "router", "balance", "l1", "gradient_norm", "learning_rate"} <= set(logged)
    assert {"active_keys", "distinct_keys", "largest_share", "queries_without_key"} <= set(logged)
    sums = sum(logged[name] for name in ("contrastive", "router", "balance", "l1"))
    assert logged["loss"] == pytest.approx(sums, rel=1e-5)


@pytest.mark.parametrize("expected", [True, False])
def test_evaluate_at_end(
    expected: bool, tiny: Configs, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def counted(*_: Any, **__: Any) -> dict[str, float]:
        calls.append(1)
        return {"nDCG@10": 0.5}

    monkeypatch.setattr("citadel.train.run.evaluate", counted)
    config = tiny(run={"evaluate_at_end": expected, "log_every": 5}, optimizer={"steps": 1})
    out = train(config, tmp_path / "out")
    logged = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert len(calls) == expected == any("nDCG@10" in record for record in logged)
    assert config.fingerprint == tiny(run={"log_every": 5}, optimizer={"steps": 1}).fingerprint


def test_loss_falls(tiny: Configs, tmp_path: Path) -> None:
    out = train(tiny(optimizer={"steps": 40, "batch": 4}, run={"checkpoint_every": 0}), tmp_path / "out")
    result = list(losses(out).values())
    assert sum(result[-5:]) < 0.7 * sum(result[:5])


def test_averaged_weights_are_the_mean_of_the_last_steps(tiny: Configs, tmp_path: Path, monkeypatch) -> None:
    seen: list[torch.Tensor] = []
    update = Run.update

    def noted(run: Run, step: int) -> float:
        norm = update(run, step)
        seen.append(run.model.embeddings.word.detach().clone())
        return norm

    monkeypatch.setattr(Run, "update", noted)
    model = load_model(train(tiny(optimizer={"steps": 5, "average": 0.4}), tmp_path / "out"))
    torch.testing.assert_close(model.embeddings.word, (seen[3] + seen[4]) / 2)


def test_accumulated_gradients_have_the_scale_of_one_pass(tiny: Configs, tmp_path: Path) -> None:
    """Accumulation divides by the number of passes."""
    gradients, totals = [], []
    for accumulate in (1, 2):
        run = set_up(tiny(optimizer={"accumulate": accumulate}), tmp_path / str(accumulate), False, silent)
        outcome = loop._passes(run, iter([run.batches.batch(0)] * accumulate), 0.5)
        totals.append(outcome.loss)
        gradients.append([p.grad for p in run.model.parameters() if p.grad is not None])
    torch.testing.assert_close(totals[1], totals[0])
    assert len(gradients[0]) == len(gradients[1])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-7)


def test_learning_rate() -> None:
    assert [learning_rate(step, 10, 4) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    falling = [learning_rate(step, 10, 4) for step in range(4, 10)]
    assert falling == pytest.approx([1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])
    assert learning_rate(0, 3, 0) == 1.0


# Conditions that stop a run


def test_diverging_run_stops(tiny: Configs, trainer: Trainer, tmp_path: Path) -> None:
    config, out = tiny(optimizer={"lr": 1e30, "clip": 0.0}), tmp_path / "out"
    [end] = trainer.run(order(config, out))
    assert end == TrainingStopped.exit_code != 0
    assert "start again with a lower optimizer.lr" in complaint(out) and "Traceback" not in complaint(out)
    assert not (out / "model.safetensors").exists()


@pytest.mark.parametrize("log_every", [0, 1, 50])
def test_failed_step_is_never_saved(log_every: int, tiny: Configs, tmp_path: Path, monkeypatch) -> None:
    """The loss is NaN from step 3 on; checkpoint 2 is the last one for any log_every."""
    whole = objective

    def poisoned(*args: Any) -> dict[str, torch.Tensor]:
        spoiled = args[-1] >= 2 / STEPS
        return {name: term * float("nan") if spoiled else term for name, term in whole(*args).items()}

    monkeypatch.setattr(loop, "objective", poisoned)
    out = tmp_path / "out"
    with pytest.raises(TrainingStopped, match=r"step 3: .* nan; .*checkpoint-00000002"):
        train(tiny(run={"log_every": log_every}), out)
    assert sorted(path.name for path in out.glob("checkpoint-*")) == [
        "checkpoint-00000001",
        "checkpoint-00000002",
    ]
    monkeypatch.setattr(loop, "objective", whole)
    train(tiny(run={"log_every": log_every}), out, resume=True)
    assert load_model(out).embeddings.word.isfinite().all()


def test_collapsed_router_stops_the_run(tiny: Configs, tmp_path: Path, monkeypatch) -> None:

    def collapsed(*args: Any) -> Run:
        run = set_up(*args)
        with torch.no_grad():
            assert run.model.router is not None
            run.model.router.bias.sub_(1000)
            run.model.router.bias[9] += 2000
        return run

    monkeypatch.setattr(loop, "set_up", collapsed)
    with pytest.raises(TrainingStopped, match=r"100% under one key; raise router\.warm_up_steps"):
        train(tiny(), tmp_path / "out")
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_frozen_layers_keep_their_weights(tiny: Configs, tmp_path: Path) -> None:
    run = set_up(tiny(optimizer={"frozen": 1}), tmp_path / "start", False, silent)
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    train(tiny(optimizer={"frozen": 1}), tmp_path / "out")
    changed = {
        name
        for name, value in load_model(tmp_path / "out").state_dict().items()
        if not value.equal(before[name])
    }
    assert not [name for name in changed if name.startswith(("embeddings.", "layers.0."))]
    assert {name.split(".")[0] for name in changed} >= {"layers", "token", "semantic", "router"}
