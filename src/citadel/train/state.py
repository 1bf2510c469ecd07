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

PREFIX, STATE, OPTIMIZER, AVERAGE, EXTRA = (
    "checkpoint-",
    "state.json",
    "optimizer.safetensors",
    "average.safetensors",
    "extra.safetensors",
)
KEPT = 2  # checkpoints


@dataclass(frozen=True)
class Restored:
    """State to resume from."""

    step: int
    folder: Path
    average: dict[str, Tensor] | None
    averaged: int
    extra: dict[str, Tensor]


def save(
    out: Path,
    step: int,
    model: Citadel,
    optimizer: torch.optim.Optimizer,
    tokenizer: Path,
    fingerprint: str,
    average: dict[str, Tensor] | None = None,
    averaged: int = 0,
    extra: dict[str, Tensor] | None = None,
) -> Path:
    """Write `checkpoint-STEP` atomically and remove all but the newest checkpoints.

    `extra` holds further tensors that a resumed run needs.
    """
    target = out / f"{PREFIX}{step:08d}"
    temporary = out / f"{target.name}.{uuid.uuid4().hex}.tmp"
    save_model(model, temporary, tokenizer)
    save_file(_optimizer_tensors(model, optimizer), temporary / OPTIMIZER)
    for file, tensors in ((AVERAGE, average), (EXTRA, extra)):
        if tensors:
            save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, temporary / file)
    files = {path.name: _crc(path) for path in sorted(temporary.iterdir())}
    state = {"step": step, "config": fingerprint, "averaged": averaged, "files": files}
    (temporary / STATE).write_text(json.dumps(state) + "\n", encoding="utf-8")
    for path in (*temporary.iterdir(), temporary):
        sync(path)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(temporary, target)
    sync(out)
    for old in _checkpoints(out)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def restore(out: Path, model: Citadel, optimizer: torch.optim.Optimizer, fingerprint: str) -> Restored | None:
    """Load the newest intact checkpoint into model and optimizer; None if there is none.

    A damaged checkpoint is skipped with a warning: training can resume from the one before it.
    """
    for leftover in out.glob(f"{PREFIX}*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)  # from a process that was killed
    for folder in reversed(_checkpoints(out)):
        state = _state(folder)
        if state is None:
            logging.getLogger("citadel").warning("%s: damaged, skipped", folder)
            continue
        if state["config"] != fingerprint:
            raise InputError(
                "was written with another config: use the same config, or another --out", str(folder)
            )
        fill(model, read_tensors(folder / WEIGHTS), str(folder))
        _load_optimizer(model, optimizer, read_tensors(folder / OPTIMIZER))
        average = read_tensors(folder / AVERAGE) if AVERAGE in state["files"] else None
        extra = read_tensors(folder / EXTRA) if EXTRA in state["files"] else {}
        return Restored(int(state["step"]), folder, average, int(state["averaged"]), extra)
    return None


def publish(out: Path, model: Citadel, tokenizer: Path) -> None:
    """Write the finished model into the folder of its run."""
    temporary = out / "final.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    save_model(model, temporary, tokenizer)
    # Move the weights last: without them an interrupted run can still be resumed.
    for file in sorted(temporary.iterdir(), key=lambda file: file.name == WEIGHTS):
        sync(file)
        os.replace(file, out / file.name)
    sync(out)
    temporary.rmdir()


def check_out(out: Path, resume: bool) -> None:
    """Raise if the folder holds another run, finished or not."""
    if (out / WEIGHTS).exists():
        raise InputError("already holds a finished model: name another --out", str(out))
    if not resume and any(out.glob(f"{PREFIX}*")):
        raise InputError(
            "holds an unfinished run: continue it with --resume, or name another --out", str(out)
        )


def last_checkpoint(out: Path) -> str:
    """Name of the newest checkpoint, for messages."""
    checkpoints = _checkpoints(out)
    return str(checkpoints[-1]) if checkpoints else "none: checkpoint_every was not reached"


def _checkpoints(out: Path) -> list[Path]:
    return sorted(path for path in out.glob(f"{PREFIX}*") if path.name.removeprefix(PREFIX).isdigit())


def _state(folder: Path) -> dict[str, Any] | None:
    """Read the state of a checkpoint; None if a file is missing or damaged."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        intact = {WEIGHTS, OPTIMIZER} <= set(state["files"])
        intact = intact and all(_crc(folder / name) == crc for name, crc in state["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return state if intact and {"step", "config", "averaged"} <= set(state) else None


def _optimizer_tensors(model: Citadel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{part}:{name}": value.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        for part, value in optimizer.state.get(parameter, {}).items()
    }


def _load_optimizer(model: Citadel, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restore the optimizer's state; `load_state_dict` moves each tensor to its device."""
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
    """Flush a file or a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
