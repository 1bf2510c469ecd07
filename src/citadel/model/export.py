"""Export a checkpoint to a model folder that runs without torch: graph, tokenizer, config and model card."""

from __future__ import annotations

import importlib.util
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from citadel.encode.config import CONFIG_FILE, ModelConfig, load_config
from citadel.encode.encoder import Encoder
from citadel.encode.session import ONNX_FILE
from citadel.encode.tokenizer import TOKENIZER_FILE
from citadel.errors import InputError, UsageError
from citadel.model.agreement import check_agreement
from citadel.model.card import model_card
from citadel.model.matrices import Fp32, Int8, Matrices
from citadel.model.network import build
from citadel.model.safety import refuse_pickles
from citadel.model.shapes import check_shapes
from citadel.types import Floats

Report = Callable[[str], Any]
WEIGHTS = "model.safetensors"
PARTS, README = (ONNX_FILE, TOKENIZER_FILE, CONFIG_FILE), "README.md"
CARD = "card.md"  # of a checkpoint: training data and licence, copied into the model card
PRECISIONS: Mapping[str, type[Matrices]] = {"fp32": Fp32, "int8": Int8}


def export(
    checkpoint: str | os.PathLike[str],
    out: str | os.PathLike[str],
    precision: str = "int8",
    overwrite: bool = False,
    report: Report = lambda line: None,
) -> list[Path]:
    """Write a model folder atomically; "both" writes one folder per precision below `out`.

    Before a folder gets its final name, its graph is run on a few texts and compared with the numpy forward
    pass and, if installed, with torch; `report` receives the result as a line of text.
    """
    if precision not in (*PRECISIONS, "both"):
        raise UsageError(f"unknown precision {precision!r}: choose one of {', '.join(PRECISIONS)}, both")
    config, state = read_checkpoint(checkpoint)
    names = list(PRECISIONS) if precision == "both" else [precision]
    targets = {name: Path(out, name) if precision == "both" else Path(out) for name in names}
    for target in targets.values():
        if target.exists() and not overwrite:
            raise InputError("already exists: name another folder, or pass --overwrite", str(target))
        if target.exists() and not _is_model(target):
            raise InputError("holds something other than a model: name another folder", str(target))
    return [_write(Path(checkpoint), target, config, state, name, report) for name, target in targets.items()]


def read_checkpoint(folder: str | os.PathLike[str]) -> tuple[ModelConfig, dict[str, Floats]]:
    """Read config and tensors (as fp32) of a checkpoint folder and check that they match."""
    if not os.path.isdir(folder):
        raise InputError("no such checkpoint: name a folder written by `citadel train`", os.fspath(folder))
    refuse_pickles(folder)
    config, file = load_config(folder), os.path.join(folder, WEIGHTS)
    try:
        state = {name: array.astype(np.float32) for name, array in load_file(file).items()}
    except FileNotFoundError:
        raise InputError(
            "the checkpoint has no weights: name a folder written by `citadel train`", file
        ) from None
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise InputError(f"cannot be read as safetensors ({error}): take another checkpoint", file) from None
    check_shapes(config, state, file)
    return config, state


def _write(
    checkpoint: Path,
    target: Path,
    config: ModelConfig,
    state: Mapping[str, Floats],
    precision: str,
    report: Report,
) -> Path:
    temporary = target.with_name(f"{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.mkdir(parents=True)
        (temporary / ONNX_FILE).write_bytes(build(config, state, PRECISIONS[precision]()).SerializeToString())
        shutil.copyfile(_tokenizer(checkpoint), temporary / TOKENIZER_FILE)
        config.save(temporary)
        _check(checkpoint, temporary, state, precision == "fp32", lambda line: report(f"{target}: {line}"))
        (temporary / README).write_text(_card(checkpoint, config, precision), encoding="utf-8")
        _rename(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _check(checkpoint: Path, folder: Path, state: Mapping[str, Floats], exact: bool, report: Report) -> None:
    encoder = Encoder(folder, threads=1)
    check_agreement(encoder, state, exact)
    if importlib.util.find_spec("torch") is not None:
        from citadel.model.checkpoint import load_model
        from citadel.model.torch_agreement import check_torch

        report(check_torch(encoder, load_model(checkpoint), exact))


def _is_model(folder: Path) -> bool:
    """Whether a folder holds only files of an export; --overwrite removes all of them."""
    return folder.is_dir() and {file.name for file in folder.iterdir()} <= {*PARTS, README}


def _tokenizer(checkpoint: Path) -> Path:
    path = checkpoint / TOKENIZER_FILE
    if not path.is_file():
        raise InputError(
            "the checkpoint has no tokenizer: put the backbone's tokenizer.json into it", str(path)
        )
    return path


def _card(checkpoint: Path, config: ModelConfig, precision: str) -> str:
    path = checkpoint / CARD
    return model_card(config, precision, path.read_text(encoding="utf-8") if path.is_file() else "")


def _rename(temporary: Path, target: Path) -> None:
    """Rename a finished folder to its final name; the old folder is removed last."""
    old = target.with_name(f"{temporary.name}.old")
    if target.exists():
        os.rename(target, old)
    os.rename(temporary, target)
    shutil.rmtree(old, ignore_errors=True)
