"""Run `train`, `distill`, `mine`, `score` and `measure`: check the options, then call the library."""

from __future__ import annotations

import importlib.util
import math
import os
from typing import TYPE_CHECKING

from citadel.errors import UsageError
from citadel.progress import default_meter

if TYPE_CHECKING:
    from citadel.paper.record import Measurement
    from citadel.train.config_tables import DataPart


def run_train(config: str, out: str, resume: bool = False, device: str = "", steps: int = 0) -> None:
    """Train a model as configured."""
    from citadel.train.config import load_train_config

    loaded = load_train_config(config)
    loaded = loaded.with_steps(steps) if steps else loaded
    loaded = loaded.with_device(device) if device else loaded
    _need_torch("training")
    from citadel.train.loop import train

    train(loaded, out, resume=resume, meter=default_meter())


def run_distill(
    config: str,
    out: str,
    resume: bool = False,
    teacher: str = "",
    device: str = "",
    steps: int = 0,
    minutes: float = 0.0,
) -> None:
    """Train a student as configured."""
    from citadel.train.students.config import load_distill_config

    if steps and minutes:
        raise UsageError("--steps and --minutes both limit the run: give one of them")
    loaded = load_distill_config(config)
    loaded = loaded.with_steps(steps) if steps else loaded
    loaded = loaded.with_minutes(minutes) if minutes else loaded
    loaded = loaded.with_device(device) if device else loaded
    loaded = loaded.with_teacher(teacher) if teacher else loaded
    _need_torch("training")
    from citadel.train.students.loop import distill

    distill(loaded, out, resume=resume, meter=default_meter())


def run_mine(
    model: str,
    out: str,
    data: str = "",
    passages: str = "",
    pairs: str = "",
    k: int = 100,
    margin: float | None = None,
    device: str = "auto",
    threads: int | None = None,
) -> None:
    """Mine hard negatives."""
    from citadel.train.negatives import mine

    if k < 1 or (margin is not None and math.isnan(margin)):
        raise UsageError(f"-k {k} with --margin {margin}: give a k of 1 or more and a number")
    part = data_part(data, passages, pairs)
    check_out(out)
    limit = -math.inf if margin is None else margin
    lines = mine(part, model, out, k=k, margin=limit, device=device, threads=threads, meter=default_meter())
    print(f"{out}: negatives of {lines:,} pairs")


def run_score(
    teacher: str,
    negatives: str,
    out: str,
    data: str = "",
    passages: str = "",
    kind: str = "cross",
    keep: int = 32,
    device: str = "auto",
    fuse: str = "",
) -> None:
    """Score mined negatives with a teacher."""
    from citadel.train.data_files import checked, read_passages
    from citadel.train.distill import score_negatives
    from citadel.train.readers import read_source

    check_out(out)
    if bool(data) == bool(passages):
        raise UsageError("name the passages: either --data CONFIG.toml, or --passages FILE")
    part = data_part(data, "", "") if data else None
    texts = read_source(part).passages if part else read_passages(checked(passages, "--passages"))
    lines = score_negatives(
        teacher, texts, negatives, out, kind, keep, part, device, default_meter(), _weight(fuse)
    )
    print(f"{out}: scores of {lines:,} pairs")


def run_measure(
    model: str,
    collection: str,
    out: str,
    name: str = "",
    tau: list[float] | None = None,
    codec: list[str] | None = None,
    semantic: list[str] | None = None,
    k: int = 100,
    engine: str = "auto",
    device: str = "auto",
    fill: str = "",
    overwrite: bool = False,
    threads: int | None = None,
    split: str = "",
    timed: int = 0,
) -> None:
    """Measure a system on a collection, or fill in the measures of an existing file."""
    from citadel.eval import open_dataset
    from citadel.paper.record import read_measurement
    from citadel.paper.run import fill as fill_measures
    from citadel.paper.run import measure
    from citadel.paper.system import SystemSpec

    if not collection or bool(model) == bool(fill) or bool(model) != bool(out):
        raise UsageError("name a MODEL with --collection and --out, or --fill FILE.json with --collection")
    dataset = open_dataset(collection, split)
    if fill:
        print(_measured_line(fill, fill_measures(fill, dataset)))
        return
    chosen = (tuple(tau or ()), tuple(codec or ("int8",)), tuple(semantic or ("auto",)))
    spec = SystemSpec(model, name, *chosen, k, engine, device, threads, timed)
    for file in measure(spec, dataset, out, overwrite=overwrite, meter=default_meter()):
        print(_measured_line(str(file), read_measurement(file)))


def _measured_line(file: str, measurement: Measurement) -> str:
    quality = (
        " ".join(f"{name} {value:.4f}" for name, value in measurement.measures.items())
        or "measures not computed yet"
    )
    return f"{file}: {quality}, {measurement.dot_products or 0:,.0f} dot products per query"


def _weight(fuse: str) -> float:
    from citadel.train.bm25_teacher import parse_fuse

    return parse_fuse(fuse) if fuse else 0.0


def data_part(data: str, passages: str, pairs: str) -> DataPart:
    """Return [data] of a config, or of two files named on the command line."""
    from citadel.train.config import load_train_config
    from citadel.train.config_tables import DataPart

    if data and not passages:
        return load_train_config(data).data
    if data or not passages or not pairs:
        raise UsageError("name the data: either --data CONFIG.toml, or --passages FILE and --pairs FILE")
    return DataPart(format="pairs", passages=passages, pairs=pairs)


def check_out(out: str) -> None:
    """Refuse an output file that cannot be written before hours of work."""
    folder = os.path.dirname(os.path.abspath(out))
    if os.path.isdir(out) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageError(f"--out {out} cannot be written: name a file in an existing folder")


def _need_torch(what: str) -> None:
    if importlib.util.find_spec("torch") is None:
        raise UsageError(f"{what} needs torch: run `pip install 'citadel-ir[train]'`")
