"""Checkpoints of a run: written atomically, checked when read, and sufficient for an exact resume."""

from __future__ import annotations

import json
import logging
import os
import shutil
import uuid
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from citadel.errors import InputError
from citadel.model.checkpoint import WEIGHTS, fill, read_tensors, save_model
from citadel.model.citadel import Citadel

PREFIX, STATE, OPTIMIZER, AVERAGE = "checkpoint-", "state.json", "optimizer.safetensors", "average.safetensors"
KEPT = 2


@dataclass(frozen=True)
class Restored:
    """State to resume from."""

    step: int
    folder: Path
    average: dict[str, Tensor] | None
    averaged: int


def save(
    out: Path,
    step: int,
    model: Citadel,
    optimizer: torch.optim.Optimizer,
    tokenizer: Path,
    fingerprint: str,
    average: dict[str, Tensor] | None = None,
    averaged: int = 0,
) -> Path:
    """Write `checkpoint-STEP`, there under its name only when whole; the last ones are kept, older ones removed."""
    target = out / f"{PREFIX}{step:08d}"
    temporary = out / f"{target.name}.{uuid.uuid4().hex}.tmp"
    save_model(model, temporary, tokenizer)
    save_file(_optimizer_tensors(model, optimizer), temporary / OPTIMIZER)
    if average is not None:
        save_file({name: tensor.cpu().contiguous() for name, tensor in average.items()}, temporary / AVERAGE)
    files = {file.name: _crc(file) for file in sorted(temporary.iterdir())}
    state = {"step": step, "config": fingerprint, "averaged": averaged, "files": files}
    (temporary / STATE).write_text(json.dumps(state) + "\n", encoding="utf-8")
    for file in (*temporary.iterdir(), temporary):
        sync(file)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(temporary, target)
    sync(out)
    for old in _checkpoints(out)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def restore(out: Path, model: Citadel, optimizer: torch.optim.Optimizer, fingerprint: str) -> Restored | None:
    """Load the newest whole checkpoint into model and optimizer; None where there is none.

    A damaged one is passed over with a warning, because the one before it is as good a place to go on.
    """
    for left in out.glob(f"{PREFIX}*.tmp"):
        shutil.rmtree(left, ignore_errors=True)  # of a process that was killed
    for folder in reversed(_checkpoints(out)):
        state = _state(folder)
        if state is None:
            logging.getLogger("citadel").warning("%s: damaged, passed over", folder)
            continue
        if state["config"] != fingerprint:
            raise InputError("was made with another config: use another --out, or the same config", str(folder))
        fill(model, read_tensors(folder / WEIGHTS), str(folder))
        _load_optimizer(model, optimizer, read_tensors(folder / OPTIMIZER))
        average = read_tensors(folder / AVERAGE) if AVERAGE in state["files"] else None
        return Restored(int(state["step"]), folder, average, int(state["averaged"]))
    return None


def last_checkpoint(out: Path) -> str:
    """The newest checkpoint by name, for messages."""
    found = _checkpoints(out)
    return str(found[-1]) if found else "none: checkpoint_every was not reached"


def _checkpoints(out: Path) -> list[Path]:
    return sorted(path for path in out.glob(f"{PREFIX}*") if path.name.removeprefix(PREFIX).isdigit())


def _state(folder: Path) -> dict[str, Any] | None:
    """The state of a checkpoint, if every file is as it was written."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        whole = {WEIGHTS, OPTIMIZER} <= set(state["files"])
        whole = whole and all(_crc(folder / name) == crc for name, crc in state["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return state if whole and {"step", "config", "averaged"} <= set(state) else None


def _optimizer_tensors(model: Citadel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{part}:{name}": value.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        for part, value in optimizer.state.get(parameter, {}).items()
    }


def _load_optimizer(model: Citadel, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Give the optimizer its state back; it knows itself where a part lives: a fused step counter on the GPU."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    ordered = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    index = {name: number for number, name in enumerate(ordered)}
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        part, name = key.split(":", 1)
        state.setdefault(index[name], {})[part] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _crc(file: Path) -> int:
    crc = 0
    with open(file, "rb") as opened:
        while block := opened.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc


def sync(path: Path) -> None:
    """Wait until a file or a folder's names are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
