"""The teacher of a student, and the student that starts from some of the teacher's layers."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch

from citadel.encode.config import ModelConfig
from citadel.encode.locate import fingerprint
from citadel.errors import InputError
from citadel.model.checkpoint import ONNX, WEIGHTS, load_model
from citadel.model.citadel import Citadel
from citadel.train.students.config import DistillConfig

# From the config of the student that another one starts from.
_MAY_DIFFER = ("name", "key_margin", "skipped_tokens")


@dataclass(frozen=True)
class TeacherModel:
    """A loaded teacher, or a student to start from."""

    folder: Path
    model: Citadel
    space: str  # of the student
    digest: str  # of its weights


def load_teacher(name: str, space: str) -> TeacherModel:
    """Load a model folder or a run; `space` is the space to write into the student, "" for the teacher's."""
    folder = Path(name)
    if not folder.is_dir():
        raise InputError("there is no such teacher: name a model folder, or a run of `citadel train`", name)
    model = load_model(folder)
    if model.config.router != "dynamic":
        raise InputError(
            f"a teacher with the router {model.config.router} is not supported: choose a dynamic one", name
        )
    return TeacherModel(folder, model, _space(folder, model.config, space), _digest(folder))


def _space(folder: Path, config: ModelConfig, given: str) -> str:
    own = config.space or (_exported_space(folder) if not (folder / WEIGHTS).is_file() else "")
    if given and own and given != own:
        reason = f"the teacher's space is {own!r}, the config says {given!r}"
        raise InputError(f"{reason}: leave `space` out of the config", str(folder))
    if not given and not own:
        raise InputError(
            "the teacher is a run without a space: write `space = NAME` into this config and into the "
            "teacher's config.json, or name an exported model",
            str(folder),
        )
    replace(config, space=given or own)  # checks the name
    return given or own


def _exported_space(folder: Path) -> str:
    return fingerprint(folder)


def _digest(folder: Path) -> str:
    file = folder / WEIGHTS if (folder / WEIGHTS).is_file() else folder / ONNX
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def load_start(name: str) -> TeacherModel | None:
    """Load the student that another one starts from, a model folder or a run; None for no name."""
    if not name:
        return None
    folder = Path(name)
    if not folder.is_dir():
        raise InputError("there is no such student to start from: name a model folder or a run", name)
    model = load_model(folder)
    return TeacherModel(folder, model, model.config.space, _digest(folder))


def _check_start(start: TeacherModel, wanted: ModelConfig, teacher: Citadel) -> None:
    own, where = start.model.config, str(start.folder)
    names = [
        part.name
        for part in fields(ModelConfig)
        if part.name not in _MAY_DIFFER and getattr(own, part.name) != getattr(wanted, part.name)
    ]
    if names:
        raise InputError(f"is no student of this teacher and these layers: {', '.join(names)} differ", where)
    words = teacher.embeddings.word
    rounding = words.abs().amax(1, keepdim=True) / 127  # of an int8 export
    if bool(((start.model.embeddings.word - words).abs() > rounding).any()):
        raise InputError("has other word embeddings than the teacher: it is a student of another", where)


def new_student(teacher: TeacherModel, config: DistillConfig, start: TeacherModel | None = None) -> Citadel:
    """A student with some of the teacher's layers, its embeddings and heads; word embeddings are frozen.

    With `start`, all other weights are those of an earlier student.
    """
    shape, layers = teacher.model.config.backbone, config.student.layers
    if layers[-1] >= shape.layers:
        raise InputError(
            f"student.layers names layer {layers[-1]}, the teacher has {shape.layers}, counted from 0"
        )
    student = Citadel(
        replace(
            teacher.model.config,
            name=config.name,
            space=teacher.space,
            key_margin=config.student.key_margin,
            backbone=replace(shape, layers=len(layers)),
        )
    )
    if start is not None:
        _check_start(start, student.config, teacher.model)
    given = (start.model if start else teacher.model).state_dict()
    with torch.no_grad():
        for name, tensor in student.state_dict().items():
            tensor.copy_(given[name if start else _of_teacher(name, layers)])
        student.embeddings.word.copy_(teacher.model.embeddings.word)
    student.embeddings.word.requires_grad_(False)
    return student


def _of_teacher(name: str, layers: tuple[int, ...]) -> str:
    """Name of the teacher's tensor that a student's tensor starts from.

    >>> _of_teacher("layers.1.attention.qkv.weight", (0, 11)), _of_teacher("token.bias", (0, 11))
    ('layers.11.attention.qkv.weight', 'token.bias')
    """
    return re.sub(r"^layers\.(\d+)\.", lambda found: f"layers.{layers[int(found[1])]}.", name)


def write_card(
    out: Path,
    config: DistillConfig,
    teacher: TeacherModel,
    start: TeacherModel | None,
    passages: int,
    steps: int,
) -> None:
    """Write the training part of the model card, which `citadel export` copies."""
    layers = ", ".join(map(str, config.student.layers))
    name = teacher.model.config.name or os.path.basename(os.path.abspath(teacher.folder))
    origin = f"an earlier student of {name}" if start else f"the layers {layers} of {name}"
    text = (
        f"A student of {name}, in the same vector space: an index built by one can be searched with the\n"
        f"other. It started from {origin} and was trained by `citadel distill` in\n"
        f"{steps:,} steps to reproduce its vectors, keys and scores over {passages:,} passages.\n"
    )
    (out / "card.md").write_text(text, encoding="utf-8")
