"""Training configuration from one TOML file; unknown keys, wrong types and contradictions are errors."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from citadel.encode.config import make
from citadel.errors import InputError
from citadel.train.config_tables import (
    PRESETS,
    DataPart,
    LossPart,
    ModelPart,
    OffsetPart,
    OptimizerPart,
    RouterPart,
    RunPart,
)

_NOT_FINGERPRINTED = {
    "log_every",
    "evaluate_every",
    "evaluate_queries",
    "evaluate_passages",
    "evaluate_at_end",
    "checkpoint_every",
    "packed",
    "device",
}


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Configuration of a training run.

    >>> text = '''
    ... name = "demo"
    ... [model]
    ... backbone = "bert-base-uncased"
    ... router = "dynamic"
    ... [data]
    ... folder = "$CITADEL_DATA/train"
    ... [optimizer]
    ... steps = 100
    ... '''
    >>> config = parse_train_config(text)
    >>> config.optimizer.batch, parse_train_config(config.to_toml()).fingerprint == config.fingerprint
    (128, True)
    """

    name: str
    seed: int
    model: ModelPart
    data: DataPart
    loss: LossPart
    router: RouterPart
    optimizer: OptimizerPart
    run: RunPart
    offset: OffsetPart = field(default_factory=OffsetPart)

    def to_toml(self) -> str:
        """The effective config as TOML: every value, given or default."""
        import tomli_w  # extra [train]; mining and scoring need the config but not this package

        return tomli_w.dumps(self._tables())

    @property
    def fingerprint(self) -> str:
        """SHA-256 over everything that determines the weights; a resumed run needs the same."""
        tables = self._tables()
        tables["run"] = {
            name: value for name, value in tables["run"].items() if name not in _NOT_FINGERPRINTED
        }
        del tables["data"]["cache"]  # does not affect the weights
        if not self.offset.on:
            del tables["offset"]  # the fingerprint of other runs must not change
        return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()

    def with_steps(self, steps: int) -> TrainConfig:
        """The same run with another number of steps."""
        return replace(self, optimizer=replace(self.optimizer, steps=steps, epochs=0.0))

    def with_device(self, device: str) -> TrainConfig:
        """The same run on another device."""
        return replace(self, run=replace(self.run, device=device))

    def with_backbone(self, backbone: str) -> TrainConfig:
        """The same run from another backbone, or from one revision of it."""
        return replace(self, model=replace(self.model, backbone=backbone))

    def _tables(self) -> dict[str, Any]:
        parts = {part.name: asdict(getattr(self, part.name)) for part in fields(self)[3:]}
        return {"name": self.name, "seed": self.seed, "model": self.model.effective(), **parts}


def load_train_config(path: str | os.PathLike[str]) -> TrainConfig:
    """Read a config from a TOML file."""
    return parse_train_config(read_text(path), os.fspath(path))


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a config file."""
    name = os.fspath(path)
    try:
        with open(name, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise InputError(f"cannot be opened: {error.strerror}; name a training config", name) from None
    except ValueError as error:
        raise InputError(f"cannot be read ({error}): a config is a TOML file in UTF-8", name) from None


def parse_train_config(text: str, source: str = "") -> TrainConfig:
    """Parse a config.

    >>> parse_train_config("[optimiser]", "run.toml")
    Traceback (most recent call last):
    citadel.errors.InputError: run.toml: unknown key 'optimiser': known are name, seed, model, data, loss, ...
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"not valid TOML: {error}", source) from None
    try:
        return _train_config(data)
    except InputError as error:
        raise InputError(error.reason, source) from None


def expand(path: str) -> str:
    """Expand `$CITADEL_DATA` (default `data`) and `~` in a path.

    >>> expand("configs/smoke.toml")
    'configs/smoke.toml'
    """
    data = os.environ.get("CITADEL_DATA") or "data"
    return os.path.expanduser(path.replace("${CITADEL_DATA}", "$CITADEL_DATA").replace("$CITADEL_DATA", data))


def _train_config(data: dict[str, Any]) -> TrainConfig:
    known = [part.name for part in fields(TrainConfig)]
    if unknown := sorted(set(data) - set(known)):
        raise InputError(f"unknown key {unknown[0]!r}: known are {', '.join(known)}")
    name, seed = data.get("name", ""), data.get("seed", 0)
    if not isinstance(name, str) or not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise InputError("name must be a string and seed an integer of 0 or more")
    tables = {part: _table(data, part) for part in known[2:]}
    model = _model_part(tables["model"])
    optimizer = make(OptimizerPart, tables["optimizer"], "optimizer.")
    offset = make(OffsetPart, tables["offset"], "offset.")
    _check_offset(model, optimizer, offset)
    loss = make(LossPart, tables["loss"], "loss.")  # checks the keys and the preset before it is applied
    if loss.teacher and tables["data"].get("scores"):
        raise InputError("loss.teacher and data.scores are both set: give one teacher")
    return TrainConfig(
        name=name,
        seed=seed,
        model=model,
        data=make(DataPart, tables["data"], "data."),
        loss=make(LossPart, PRESETS[loss.preset] | tables["loss"], "loss."),
        router=make(RouterPart, tables["router"], "router."),
        optimizer=optimizer,
        run=make(RunPart, tables["run"], "run."),
        offset=offset,
    )


def _table(data: dict[str, Any], part: str) -> dict[str, Any]:
    table = data.get(part, {})
    if not isinstance(table, dict):
        raise InputError(f"{part} is {table!r}, not a table: write [{part}]")
    return table


def _check_offset(model: ModelPart, optimizer: OptimizerPart, offset: OffsetPart) -> None:
    if not (optimizer.steps or optimizer.epochs or offset.on):
        raise InputError("optimizer.steps and optimizer.epochs: give one of them, above 0")
    if offset.on != (model.settings.get("document_offset", 0) > 0):
        raise InputError("model.document_offset and offset.steps need each other: give both, or none")


def _model_part(table: dict[str, Any]) -> ModelPart:
    own = {"backbone": "", "route_function_words": True}
    for name, default in own.items():
        own[name] = table.get(name, default)
        if not isinstance(own[name], type(default)):
            raise InputError(f"model.{name} is {own[name]!r}, not of type {type(default).__name__}")
    settings = {name: value for name, value in table.items() if name not in own}
    return ModelPart(str(own["backbone"]), settings, bool(own["route_function_words"]))
