"""Checkpoints of a run: atomic, checked when read; the newest intact one is restored."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch

from citadel.errors import InputError
from citadel.model.checkpoint import load_model
from citadel.model.citadel import Citadel
from citadel.train import state
from tests.support.models import tiny_tokenizer
from tests.support.tiny import tiny_citadel

FILES = ["model.safetensors", "config.json", "tokenizer.json", "optimizer.safetensors", "average.safetensors"]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    tiny_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def pair(seed: int = 0) -> tuple[Citadel, torch.optim.Optimizer]:
    """Model and optimizer after one step."""
    model = tiny_citadel("dynamic", seed).float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for number, parameter in enumerate(model.parameters()):
        if number % 3:  # parameters without a gradient have no state
            parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return model, optimizer


def fresh() -> tuple[Citadel, torch.optim.Optimizer]:
    model = tiny_citadel("dynamic", 9).float()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def write(out: Path, step: int, tokenizer: Path, seed: int = 0) -> tuple[Citadel, torch.optim.Optimizer]:
    model, optimizer = pair(seed)
    average = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    state.save(out, step, model, optimizer, tokenizer, "fingerprint", average, 3)
    return model, optimizer


def test_save_and_restore(tmp_path: Path, tokenizer: Path) -> None:
    model, optimizer = write(tmp_path / "out", 7, tokenizer)
    again, restored = fresh()
    checkpoint = state.restore(tmp_path / "out", again, restored, "fingerprint")
    assert checkpoint is not None and (checkpoint.step, checkpoint.averaged, checkpoint.folder.name) == (
        7,
        3,
        "checkpoint-00000007",
    )
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
        assert checkpoint.average is not None and torch.equal(checkpoint.average[name], tensor + 1)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        was, now = optimizer.state.get(one, {}), restored.state.get(other, {})
        assert set(was) == set(now)
        assert all(torch.equal(was[part], now[part]) for part in was)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_fused_optimizer_resumes_exactly(tmp_path: Path, tokenizer: Path) -> None:
    """On CUDA the step counter must be restored to the GPU."""
    weights = []
    for stops in (False, True):
        model = tiny_citadel("dynamic").float().cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        for step in range(4):
            if stops and step == 2:
                state.save(tmp_path / "out", 2, model, optimizer, tokenizer, "fingerprint")
                model = tiny_citadel("dynamic", 9).float().cuda()
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
                assert state.restore(tmp_path / "out", model, optimizer, "fingerprint") is not None
            for number, parameter in enumerate(model.parameters()):
                torch.manual_seed(100 * step + number)
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
        weights.append(model.embeddings.word.detach().cpu())
    assert torch.equal(weights[0], weights[1])


def test_checkpoint_loads_as_a_model(tmp_path: Path, tokenizer: Path) -> None:
    model, _ = write(tmp_path / "out", 7, tokenizer)
    again = load_model(tmp_path / "out" / "checkpoint-00000007")
    assert torch.equal(again.embeddings.word, model.embeddings.word)


def test_restore_without_a_checkpoint(tmp_path: Path) -> None:
    assert state.restore(tmp_path, *fresh(), "fingerprint") is None
    assert "none" in state.last_checkpoint(tmp_path)


def test_only_the_last_two_checkpoints_are_kept(tmp_path: Path, tokenizer: Path) -> None:
    for step in (5, 10, 100, 1000):
        write(tmp_path / "out", step, tokenizer)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "checkpoint-00000100",
        "checkpoint-00001000",
    ]
    assert state.last_checkpoint(tmp_path / "out").endswith("checkpoint-00001000")


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "empty"])
@pytest.mark.parametrize("name", [*FILES, "state.json"])
def test_damaged_checkpoint_is_skipped(
    name: str, damage: str, tmp_path: Path, tokenizer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    before, _ = write(out, 1, tokenizer, seed=1)
    write(out, 2, tokenizer, seed=2)
    damage_file(out / "checkpoint-00000002" / name, damage)
    model, optimizer = fresh()
    with caplog.at_level(logging.WARNING):
        checkpoint = state.restore(out, model, optimizer, "fingerprint")
    assert checkpoint is not None and checkpoint.step == 1
    assert torch.equal(model.embeddings.word, before.embeddings.word)
    assert "checkpoint-00000002: damaged, skipped" in caplog.text


def damage_file(file: Path, damage: str) -> None:
    data = bytearray(file.read_bytes())
    if damage == "gone":
        return file.unlink()
    if damage == "flipped":
        data[len(data) // 2] ^= 0x80
    kept = {"cut": len(data) - 1 - len(data) // 3, "flipped": len(data), "empty": 0}[damage]
    file.write_bytes(data[:kept])
    return None


@pytest.mark.parametrize(
    "text", ["[]", "null", '{"files": []}', '{"files": {}, "step": 1}', '{"files": {"../x": 0}}']
)
def test_malformed_state_is_damage(text: str, tmp_path: Path, tokenizer: Path) -> None:
    write(tmp_path / "out", 1, tokenizer)
    (tmp_path / "out" / "checkpoint-00000001" / "state.json").write_text(text)
    assert state.restore(tmp_path / "out", *fresh(), "fingerprint") is None


def test_state_without_checksums_is_damage(tmp_path: Path, tokenizer: Path) -> None:
    write(tmp_path / "out", 1, tokenizer)
    folder = tmp_path / "out" / "checkpoint-00000001"
    saved = json.loads((folder / "state.json").read_text())
    assert set(saved["files"]) == set(FILES)
    saved["files"] = {}
    (folder / "state.json").write_text(json.dumps(saved))
    assert state.restore(tmp_path / "out", *fresh(), "fingerprint") is None


def test_restore_with_another_config_fails(tmp_path: Path, tokenizer: Path) -> None:
    write(tmp_path / "out", 1, tokenizer)
    with pytest.raises(InputError, match="written with another config") as caught:
        state.restore(tmp_path / "out", *fresh(), "other")
    assert caught.value.exit_code == 4 and "checkpoint-00000001" in str(caught.value)


def test_leftover_temporary_checkpoint_is_removed(tmp_path: Path, tokenizer: Path) -> None:
    out = tmp_path / "out"
    write(out, 1, tokenizer)
    left = out / "checkpoint-00000002.abc.tmp"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    checkpoint = state.restore(out, *fresh(), "fingerprint")
    assert checkpoint is not None and checkpoint.step == 1 and not left.exists()


def test_save_replaces_a_damaged_checkpoint(tmp_path: Path, tokenizer: Path) -> None:
    write(tmp_path / "out", 1, tokenizer)
    damage_file(tmp_path / "out" / "checkpoint-00000001" / "model.safetensors", "cut")
    write(tmp_path / "out", 1, tokenizer)
    assert state.restore(tmp_path / "out", *fresh(), "fingerprint") is not None
