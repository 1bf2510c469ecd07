"""Two processes on a CPU train to the same weights as one."""

from __future__ import annotations

import json
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from citadel.errors import InputError, UsageError
from citadel.train.inputs import Inputs
from citadel.train.processes import SIZES, World, count_processes
from scripts.smoke_data import HIDDEN
from tests.support.training import Configs, Trainer, complaint, order, the_trainer, tiny_run

pytest.importorskip("accelerate", reason="accelerate is not installed: the extra [train] brings it")

trainer = pytest.fixture(scope="session", name="trainer")(the_trainer)


@pytest.fixture
def tiny(config: Configs) -> Configs:
    return partial(tiny_run, config)


def two(one: dict[str, Any]) -> list[dict[str, Any]]:
    """The same run for two processes that connect through a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [one | {"environment": shared | {"RANK": rank, "LOCAL_RANK": rank}} for rank in "01"]


def same_weights(out: Path, reference: Path) -> None:
    result, expected = (load_file(folder / "model.safetensors") for folder in (out, reference))
    assert set(result) == set(expected)
    for name, tensor in expected.items():
        if name.endswith("qkv.bias"):
            # A key's bias shifts all logits of a softmax, so its gradient is noise, which Adam amplifies.
            third = len(tensor) // 3
            result[name][third : 2 * third] = tensor[third : 2 * third]
        # Adam's steps do not depend on the size of a gradient: a wrong one would move a tensor by 1e-3. A few
        # values with a gradient near 0 may differ by a step of that size, hence the mean.
        difference = (result[name] - tensor).abs()
        assert difference.mean() < 2e-6 and difference.max() < 2e-3, name


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": {"alpha": 0.1, "beta": 0.01, "flops_passage": 0.1}},
        {"optimizer": {"steps": 3, "batch": 4, "cache": 2, "accumulate": 2, "average": 0.0}},
        {"model": {"router": "all_to_all", "token_dimension": 4, "semantic_dimension": 0}},
        {
            "model": {"semantic_dimension": HIDDEN},
            "loss": {
                "teacher": "the backbone",
                "distillation": "kl",
                "bm25": 0.3,
                "anchor": 0.5,
            },
        },
    ],
    ids=["dynamic", "cached and accumulated", "all_to_all", "teacher"],
)
def test_two_processes_match_one(
    changes: dict[str, dict[str, Any]], tiny: Configs, backbone: Path, trainer: Trainer, tmp_path: Path
) -> None:
    if "teacher" in changes.get("loss", {}):
        changes = {**changes, "loss": changes["loss"] | {"teacher": str(backbone)}}
    steps = {"steps": 3, "batch": 4, "lr": 1e-3, "average": 0.5}
    config = tiny(**{"optimizer": steps, **changes})
    alone, both = tmp_path / "alone", tmp_path / "both"
    assert trainer.run(order(config, alone)) == [0], complaint(alone)
    assert trainer.run(*two(order(config, both))) == [0, 0], complaint(both)
    same_weights(both, alone)
    records = [
        [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()] for out in (alone, both)
    ]
    assert len(records[0]) == len(records[1])  # only one process logs
    for one, other in zip(*records, strict=True):
        if "loss" in one:
            assert other["loss"] == pytest.approx(one["loss"], rel=1e-4)
            assert other["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=1e-4)


def test_two_processes_resume_a_run_of_one(tiny: Configs, trainer: Trainer, tmp_path: Path) -> None:
    config = tiny(optimizer={"steps": 3})
    alone, both = tmp_path / "alone", tmp_path / "both"
    assert trainer.run(order(config, alone)) == [0], complaint(alone)
    assert trainer.run(order(config, both, stop=2)) == [-9]
    assert trainer.run(*two(order(config, both, resume=True))) == [0, 0], complaint(both)
    same_weights(both, alone)


def test_batch_not_divisible_by_processes_is_rejected(
    tiny: Configs, trainer: Trainer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    ends = trainer.run(*two(order(tiny(optimizer={"batch": 3}), out)))
    assert ends == [InputError.exit_code] * 2, complaint(out)
    assert "optimizer.batch 3 cannot be shared by 2 processes" in complaint(out) and not out.exists()


def test_mpirun_environment(tiny: Configs, trainer: Trainer, tmp_path: Path) -> None:
    """Environment of `accelerate launch --cpu --mpirun_hostfile FILE` with Open MPI."""
    config, out = tiny(optimizer={"steps": 1}), tmp_path / "out"
    orders = two(order(config, out))
    for rank, one in enumerate(orders):
        port = {name: one["environment"][name] for name in ("MASTER_ADDR", "MASTER_PORT")}
        sizes = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
        ranks = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank)}
        one["environment"] = port | sizes | ranks
    assert trainer.run(*orders) == [0, 0], complaint(out)
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if "loss" in record] == [1]  # only one process logs


def test_accelerate_cpu_without_mpirun_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment of the single process that `accelerate launch --cpu --num_processes 2` starts."""
    for name in SIZES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    assert count_processes() == 1  # with --num_processes 1
    monkeypatch.setenv("MASTER_PORT", "29500")
    with pytest.raises(UsageError, match=r"starts one process, .* use torchrun"):
        World("cpu")


def test_single_process_world() -> None:
    world = World("cpu")
    texts = Inputs(*(torch.arange(4)[:, None] for _ in range(3)))
    assert (world.size, world.rank, world.leads) == (1, 0, True)
    assert world.share(texts).ids.tolist() == [[0], [1], [2], [3]]
    world.check_batch(3)
