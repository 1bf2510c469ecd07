"""The config of `citadel distill`: one TOML file; unknown keys, wrong types and contradictions are errors."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from citadel.encode.config import make
from citadel.errors import InputError
from citadel.train.config import read_text
from citadel.train.config_tables import DataPart, above, one_of, within

BATCHES = ("pairs", "passages", "queries")
_TEXT_KEYS = ("name", "teacher", "space")
# A run may be resumed with other values of these.
_NOT_FINGERPRINTED = {"optimizer": ("steps", "minutes"), "data": ("cache",)}


@dataclass(frozen=True, slots=True)
class StudentPart:
    """[student]: what the student starts from."""

    layers: tuple[int, ...] = (0, 3, 7, 11)  # of the teacher
    start: str = ""  # an earlier student of as many layers, exported or a run, to start from instead
    key_margin: float = 1.0  # written into the student's config.json
    skip: float = 0.0  # documents skip tokens of which at most this share have a key of the student

    def __post_init__(self) -> None:
        if not self.layers or list(self.layers) != sorted(set(self.layers)) or self.layers[0] < 0:
            raise InputError(
                f"student.layers is {list(self.layers)}: give layers of the teacher, from 0, ascending"
            )
        above("student.key_margin", self.key_margin)
        within("student.key_margin", self.key_margin, 0, 1)
        within("student.skip", self.skip, 0, 1)


@dataclass(frozen=True, slots=True)
class BatchPart:
    """[batch]: which texts a step sees.

    >>> BatchPart().cycle
    ('pairs', 'passages', 'queries')
    """

    cycle: tuple[str, ...] = BATCHES
    tokens: int = 40_960  # of passages per batch
    pairs: int = 256  # real queries, each with its passage, per batch of pairs
    queries: int = 1024  # texts per batch of queries
    words: float = 0.2  # share of random one- and two-word queries
    crops: float = 0.15  # share of random strings of up to 16 words
    sentences: float = 0.0  # share of random sentences
    extra: float = 0.1  # share of data.extra among queries, and among the passages of pairs
    cut: int = 160  # tokens; passages are cut here …
    long: float = 0.1  # … except in this share of the batches
    joined: float = 0.0  # share of the batches of passages whose texts run on into the next passages
    near: int = 1  # pairs drawn together, whose passages follow each other
    bank: int = 8192  # recent passages that semantic scores are compared on

    def __post_init__(self) -> None:
        if not self.cycle or not isinstance(self.cycle, tuple):
            raise InputError(f"batch.cycle is {self.cycle!r}: give a list of {', '.join(BATCHES)}")
        for kind in self.cycle:
            one_of("batch.cycle", kind, BATCHES)
        for name in ("tokens", "pairs", "queries", "near"):
            within(f"batch.{name}", getattr(self, name), 1, 1 << 24)
        within("batch.cut", self.cut, 8, 1 << 16)
        within("batch.bank", self.bank, 0, 1 << 22)
        for name in ("words", "crops", "sentences", "extra", "long", "joined"):
            within(f"batch.{name}", getattr(self, name), 0, 1)
        if self.words + self.crops + self.sentences + self.extra > 1:
            raise InputError(
                "batch.words + batch.crops + batch.sentences + batch.extra is above 1: lower one of them"
            )


@dataclass(frozen=True, slots=True)
class MatchPart:
    """[loss]: weights of the terms; 0 leaves a term out."""

    states: float = 1.0  # squared error of the last states
    router: float = 1.0  # squared error of the router's states
    tokens: float = 2.0  # squared error of the token vectors
    weights: float = 0.2  # squared error of φ at the keys of either; pairs only
    semantic: float = 20.0  # 1 − cosine of the semantic vectors
    semantic_scores: float = 0.3  # KL of semantic scores over the bank
    scores: float = 0.5  # KL of full scores over the passages of the batch; pairs only

    def __post_init__(self) -> None:
        values = asdict(self)
        for name, value in values.items():
            within(f"loss.{name}", value, 0, float("inf"))
        if not any(values.values()):
            raise InputError("every weight in [loss] is 0: give one above 0")


@dataclass(frozen=True, slots=True)
class BudgetPart:
    """[optimizer]: AdamW and the length of the run, in steps or minutes, whichever ends first.

    >>> BudgetPart(minutes=7.0).progress(step=0, seconds=210.0)
    0.5
    """

    lr: float = 4e-4
    weight_decay: float = 0.01
    clip: float = 1.0
    warm_up: float = 0.02  # share of the run
    steps: int = 0
    minutes: float = 0.0  # of training, without setting up and evaluation

    def __post_init__(self) -> None:
        if not (self.steps > 0 or self.minutes > 0) or self.steps < 0 or self.minutes < 0:
            raise InputError("optimizer.steps and optimizer.minutes: give one of them or both, above 0")
        above("optimizer.lr", self.lr)
        within("optimizer.weight_decay", self.weight_decay, 0, 1)
        within("optimizer.clip", self.clip, 0, float("inf"))
        within("optimizer.warm_up", self.warm_up, 0, 0.99)

    def progress(self, step: int, seconds: float) -> float:
        """Share of the run that is over, from 0 to 1."""
        by_step = step / self.steps if self.steps else 0.0
        by_time = seconds / (60 * self.minutes) if self.minutes else 0.0
        return min(1.0, max(by_step, by_time))

    def rate(self, progress: float) -> float:
        """Learning rate: linear warm-up, then linear decay to 0.

        >>> [BudgetPart(lr=1.0, warm_up=0.2, steps=1).rate(progress) for progress in (0.0, 0.1, 0.2, 0.6)]
        [0.05, 0.5, 1.0, 0.5]
        """
        if progress < self.warm_up:
            return self.lr * max(progress / self.warm_up, 0.05)
        return self.lr * (1 - progress) / (1 - self.warm_up)


@dataclass(frozen=True, slots=True)
class WatchPart:
    """[run]: logging, checkpoints, evaluation and device."""

    log_every: int = 100
    checkpoint_every: int = 1000
    evaluate_at_end: bool = True
    evaluate_queries: int = 0  # 0: all held-out queries
    precision: str = "auto"  # bf16 on CUDA, else fp32
    compile: bool = False
    device: str = "auto"

    def __post_init__(self) -> None:
        one_of("run.precision", self.precision, ("auto", "bf16", "fp32"))
        for name in ("log_every", "checkpoint_every", "evaluate_queries"):
            within(f"run.{name}", getattr(self, name), 0, float("inf"))


@dataclass(frozen=True, slots=True)
class DistillConfig:
    """Configuration of a student.

    >>> text = '''
    ... teacher = "models/small-en"
    ... [data]
    ... folder = "runs/open"
    ... [optimizer]
    ... minutes = 7.0
    ... '''
    >>> config = parse_distill_config(text)
    >>> config.student.layers, config.with_minutes(1.5).optimizer.minutes
    ((0, 3, 7, 11), 1.5)
    """

    name: str
    seed: int
    teacher: str  # a model folder or a run
    space: str  # "": the teacher's
    extra: str  # JSONL of further short texts
    student: StudentPart
    data: DataPart
    batch: BatchPart
    loss: MatchPart
    optimizer: BudgetPart
    run: WatchPart

    def to_toml(self) -> str:
        """The effective config as TOML."""
        import tomli_w  # extra [train]

        tables = self._tables()
        tables["data"]["extra"] = tables.pop("extra")
        return tomli_w.dumps(tables)

    def fingerprint(self, teacher: str, start: str = "") -> str:
        """SHA-256 over everything that determines the weights.

        `teacher` and `start` identify the weights of the teacher and those that the student starts from.
        """
        tables = {name: value for name, value in self._tables().items() if name not in ("run", "teacher")}
        for part, names in _NOT_FINGERPRINTED.items():
            tables[part] = {name: value for name, value in tables[part].items() if name not in names}
        tables["student"]["start"] = start
        text = json.dumps([teacher, self.run.precision, tables], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def with_steps(self, steps: int) -> DistillConfig:
        """The same run, limited to a number of steps."""
        return replace(self, optimizer=replace(self.optimizer, steps=steps, minutes=0.0))

    def with_minutes(self, minutes: float) -> DistillConfig:
        """The same run, limited to some minutes."""
        return replace(self, optimizer=replace(self.optimizer, steps=0, minutes=minutes))

    def with_device(self, device: str) -> DistillConfig:
        """The same run on another device."""
        return replace(self, run=replace(self.run, device=device))

    def with_teacher(self, teacher: str) -> DistillConfig:
        """The same run with another teacher."""
        return replace(self, teacher=teacher)

    def _tables(self) -> dict[str, Any]:
        parts = {part.name: asdict(getattr(self, part.name)) for part in fields(self)[5:]}
        return {part.name: getattr(self, part.name) for part in fields(self)[:5]} | parts


def load_distill_config(path: str | os.PathLike[str]) -> DistillConfig:
    """Read a config from a TOML file."""
    return parse_distill_config(read_text(path), os.fspath(path))


def parse_distill_config(text: str, source: str = "") -> DistillConfig:
    """Parse a config.

    >>> parse_distill_config("[students]", "tiny.toml")
    Traceback (most recent call last):
    citadel.errors.InputError: tiny.toml: unknown key 'students': known are name, seed, teacher, space, ...
    """
    try:
        return _distill_config(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"not valid TOML: {error}", source) from None
    except InputError as error:
        raise InputError(error.reason, source) from None


def _distill_config(data: dict[str, Any]) -> DistillConfig:
    known = [part.name for part in fields(DistillConfig) if part.name != "extra"]
    if unknown := sorted(set(data) - set(known)):
        raise InputError(f"unknown key {unknown[0]!r}: known are {', '.join(known)}")
    texts = {name: data.get(name, "") for name in _TEXT_KEYS}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise InputError(f"{name} is {value!r}, not of type str")
    if not texts["teacher"]:
        raise InputError("teacher is missing: name a model folder, or a run of `citadel train`")
    seed = data.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise InputError("seed must be an integer of 0 or more")
    tables = {name: _table(data, name) for name in known[4:]}
    extra = tables["data"].pop("extra", "")
    if not isinstance(extra, str):
        raise InputError(f"data.extra is {extra!r}, not of type str")
    return DistillConfig(
        **texts,
        seed=seed,
        extra=extra,
        student=make(StudentPart, tables["student"], "student."),
        data=make(DataPart, tables["data"], "data."),
        batch=make(BatchPart, tables["batch"], "batch."),
        loss=make(MatchPart, tables["loss"], "loss."),
        optimizer=make(BudgetPart, tables["optimizer"], "optimizer."),
        run=make(WatchPart, tables["run"], "run."),
    )


def _table(data: dict[str, Any], name: str) -> dict[str, Any]:
    table = data.get(name, {})
    if not isinstance(table, dict):
        raise InputError(f"{name} is {table!r}, not a table: write [{name}]")
    return dict(table)
