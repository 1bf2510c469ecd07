"""Make the measurements for the collections in $CITADEL_DATA/eval, then build the report.

    make reproduce                     # or: python scripts/reproduce.py [--train] [--out build/report]

Existing measurements in benchmarks/measured (packs) and build/measured (files) are kept. Missing ones are
made with the models in runs/family. Missing models are trained with --train, which needs a GPU; the script
prints how long that takes. Interrupted? Run the same command to resume. `scripts/pack.py` packs new files
for version control.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from citadel.encode.config import load_config
from citadel.errors import CitadelError
from citadel.eval.datasets import Dataset, beir_folder
from citadel.paper.names import system_name
from citadel.paper.packs import unpack
from citadel.paper.record import measurements_in, read_json, read_measurement, write_measurement
from citadel.paper.run import fill, measure
from citadel.paper.system import SystemSpec
from citadel.progress import default_meter
from citadel.train.config import TrainConfig, expand, load_train_config

ROOT = Path(__file__).parent.parent
CONFIGS, MODELS, MEASURED = ROOT / "configs" / "family", ROOT / "runs" / "family", ROOT / "build" / "measured"
PACKS = ROOT / "benchmarks" / "measured"
RATES = ROOT / "benchmarks" / "results" / "train.json"
KEYS = (1, 3, 5, 7, 9)
KEYS_STEPS = 300  # training steps of each model of the keys sweep
TIMED = 200
SLOWEST = 5_000  # passages per second of a system whose rate was not measured
SECONDS_PER_DOCUMENT = 0.06  # of about 200 tokens, one core, int8 (benchmarks/README.md)
PASSAGES = (
    "The average number of emoji sent each day over Messenger is five billion: a small picture of a face "
    "says in one character what a sentence would.",
    "Arrhythmia is a heart beat that is too fast, too slow or irregular; most are harmless, some can cause a "
    "stroke.",
)


@dataclass(frozen=True)
class Job:
    """A measurement to make."""

    name: str  # of its file, without suffix
    plan: SystemSpec
    collection: str

    @property
    def file(self) -> Path:
        return MEASURED / self.collection / f"{self.name}.json"

    @property
    def made(self) -> list[Path]:
        """Its existing files; several τ, codecs or modes have one file each."""
        alone = [self.file] if self.file.exists() else []
        several = [
            file for file in measurements_in(self.file.parent) if file.name.startswith(f"{self.name}.tau")
        ]
        return alone if self.wanted == 1 else several

    @property
    def wanted(self) -> int:
        """Number of files it makes."""
        return max(len(self.plan.taus), 1) + len(self.plan.codecs) + len(self.plan.semantic) - 2

    @property
    def missing(self) -> bool:
        return len(self.made) < self.wanted


def jobs(collections: Sequence[str]) -> list[Job]:
    """All measurements of a complete report."""
    result = [Job("bm25", SystemSpec("bm25", "BM25"), name) for name in collections]
    for folder in members():
        name = system_name(folder.name)
        plan = SystemSpec(
            model_in(folder), name, taus=(0.0,) if folder.name.startswith("keys-") else (), timed=TIMED
        )
        result += [Job(folder.name, plan, each) for each in collections]
    if MODELS / "colbert-v2" in members():
        plan = SystemSpec(
            model_in(MODELS / "colbert-v2"), "ColBERT-PLAID", codecs=("residual2",), timed=TIMED
        )
        result += [Job("colbert-plaid", plan, each) for each in collections]
    return result + [Job("citadel-sweep", sweep(), each) for each in collections]


def sweep() -> SystemSpec:
    """CITADEL with varied τ, codec and semantic vector; without a model the default is the paper's τ."""
    folder = model_in(MODELS / "citadel")
    return SystemSpec.sweep(
        folder, "CITADEL", load_config(folder).tau if is_trained(Path(folder)) else 0.9, timed=TIMED
    )


def members() -> list[Path]:
    """Folders of the family's models, existing or not."""
    names = [file.stem for file in sorted(CONFIGS.glob("*.toml"))]
    if (CONFIGS / "citadel.toml").is_file():
        names += [f"keys-{keys}" for keys in KEYS]
    existing = [
        file.parent.name for kind in ("model.safetensors", "model.onnx") for file in MODELS.glob(f"*/{kind}")
    ]
    return [MODELS / name for name in dict.fromkeys([*names, *sorted(existing)])]


def model_in(folder: Path) -> str:
    """The exported model of a member, which is several times faster on a CPU, or else its checkpoint."""
    return str(folder / "int8" if (folder / "int8" / "model.onnx").is_file() else folder)


def export_missing(collections: Sequence[str]) -> None:
    """Export the checkpoints to be measured, and CITADEL's, whose keys the report shows."""
    from citadel.model.export import export

    untimed = {
        job.name for job in jobs(collections) for file in job.made if not read_measurement(file).latency
    }
    needed = {"citadel", *untimed, *(job.name for job in jobs(collections) if job.missing)}
    for folder in members():
        exported = (folder / "int8").exists() or folder.name not in needed
        if (folder / "model.safetensors").is_file() and not exported:
            print(f"{folder.name}: exporting", flush=True)
            export(folder, folder / "int8")


def is_trained(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("model.safetensors", "model.onnx"))


def config_of(folder: Path) -> TrainConfig | None:
    """Training config of a member; the keys sweep is CITADEL with other keys, τ = 0 and fewer steps."""
    if folder.name.startswith("keys-"):
        base = load_train_config(CONFIGS / "citadel.toml")
        settings = {
            **base.model.settings,
            "document_keys": int(folder.name.removeprefix("keys-")),
            "tau": 0.0,
        }
        return replace(base, name=folder.name, model=replace(base.model, settings=settings)).with_steps(
            KEYS_STEPS
        )
    file = CONFIGS / f"{folder.name}.toml"
    return load_train_config(file) if file.is_file() else None


def gpu_minutes(name: str, config: TrainConfig) -> float:
    """Estimated training time, from the rates that benchmarks/train.py measured."""
    rates = {row["system"]: row["passages_per_second"] for row in read_json(RATES)["rows"]}
    system = (
        "citadel"
        if name.startswith(("keys-", "citadel-plus"))
        else "dpr-128"
        if name.startswith("dpr-")
        else name
    )
    passages = (
        config.optimizer.steps * config.optimizer.batch * config.optimizer.accumulate * config.data.group
    )
    passages += config.router.warm_up_steps * config.router.warm_up_batch
    return float(passages / rates.get(system, SLOWEST) / 60)


def train_missing(allowed: bool, collections: Sequence[str]) -> None:
    """Train the members with missing measurements and no model, or print how long that would take."""
    unknown = {job.name for job in jobs(collections) if job.missing}
    needed = [folder for folder in members() if folder.name in unknown and not is_trained(folder)]
    wanted = [(folder, config) for folder in needed if (config := config_of(folder))]
    for folder, config in wanted:
        print(f"{folder.name}: not trained; about {gpu_minutes(folder.name, config):.1f} minutes on one H200")
    if not wanted:
        return
    print(f"{sum(gpu_minutes(folder.name, config) for folder, config in wanted):.0f} GPU minutes in all")
    if not allowed:
        print("Skipped; to train these, run `make reproduce TRAIN=1` (--train) on a machine with a GPU.")
        return
    for folder, config in wanted:
        folder.mkdir(parents=True, exist_ok=True)
        written = folder.with_suffix(".toml")
        written.write_text(config.to_toml(), encoding="utf-8")
        command = [sys.executable, "-m", "citadel", "train", str(written), "--out", str(folder)]
        resumed = ["--resume"] if any(folder.glob("checkpoint-*")) else []
        subprocess.run([*command, *resumed], check=True, env=os.environ | {"PYTHONPATH": str(ROOT / "src")})


def measure_missing(datasets: dict[str, Dataset], only: Sequence[str]) -> int:
    """Make the missing measurements; return the number of failures."""
    todo = [job for job in jobs(list(datasets)) if job.missing and (not only or job.name in only)]
    ready = [job for job in todo if job.plan.model == "bm25" or is_trained(Path(job.plan.model))]
    if skipped := dict.fromkeys(job.name for job in todo if job not in ready):
        print(f"skipped, no model in {MODELS}: {', '.join(skipped)}")
    sizes = {name: sum(1 for _ in dataset.documents()) for name, dataset in datasets.items()}
    minutes = (
        sum(sizes[job.collection] for job in ready if job.plan.model != "bm25") * SECONDS_PER_DOCUMENT / 60
    )
    print(
        f"{len(ready)} measurements to make, about {minutes / (os.cpu_count() or 1):.0f} minutes here",
        flush=True,
    )
    return sum(
        not _made(job, datasets[job.collection], number, len(ready)) for number, job in enumerate(ready, 1)
    )


def fill_missing(datasets: dict[str, Dataset]) -> None:
    """Compute the measures of runs from machines without ir-measures, such as a GPU machine."""
    files = [(file, name) for name in datasets for file in measurements_in(MEASURED / name)]
    for file, name in files:
        if read_measurement(file).measures:
            continue
        try:
            fill(file, datasets[name])
            print(f"{file}: measures computed from its run", flush=True)
        except CitadelError as error:
            print(f"{file}: {error}", flush=True)


def time_missing(datasets: dict[str, Dataset], only: Sequence[str]) -> None:
    """Add latencies to measurements made without them, if the model is available."""
    for job in jobs(list(datasets)):
        if only and job.name not in only:
            continue
        kept = [file for file in job.made if not read_measurement(file).latency]
        if job.plan.model == "bm25" or not kept or not is_trained(Path(job.plan.model)):
            continue
        print(f"{job.name} on {job.collection}: timing", flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            for made in measure(
                job.plan, datasets[job.collection], Path(scratch, job.file.name), meter=default_meter()
            ):
                target = job.file.with_name(made.name)
                if target in kept:
                    latency = read_measurement(made).latency
                    write_measurement(target, replace(read_measurement(target), latency=latency))


def _made(job: Job, dataset: Dataset, number: int, count: int) -> bool:
    start = time.monotonic()
    try:
        measure(job.plan, dataset, job.file, meter=default_meter())
    except CitadelError as error:  # continue with the others
        print(
            f"[{number}/{count}] {job.name} on {job.collection} failed: {error}", file=sys.stderr, flush=True
        )
        return False
    print(f"[{number}/{count}] {job.name} on {job.collection}: {time.monotonic() - start:.0f} s", flush=True)
    return True


def explain_passages() -> None:
    """Write the explanations of Figures 5 and 7, if the model exists."""
    model = Path(model_in(MODELS / "citadel"))
    if importlib.util.find_spec("citadel.explain") is None or not (model / "model.onnx").is_file():
        return
    from citadel.encode.encoder import Encoder

    explain_text = importlib.import_module("citadel.explain").explain_text
    encoder = Encoder(model)
    for name, text in zip(("emoji", "arrhythmia"), PASSAGES, strict=True):
        file = MEASURED / "texts" / f"{name}.json"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(explain_text(encoder, text).to_json()) + "\n", encoding="utf-8")


def collections_here() -> Iterator[tuple[str, Dataset]]:
    folder = Path(expand("$CITADEL_DATA/eval"))
    for one in sorted(folder.iterdir()) if folder.is_dir() else ():
        yield one.name, beir_folder(one)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", action="store_true", help="train missing models; needs a GPU")
    parser.add_argument("--out", default=str(ROOT / "build" / "report"), help="folder of the report")
    parser.add_argument(
        "--only", action="append", default=[], help="make or time only the measurements of this name"
    )
    options = parser.parse_args()
    datasets = dict(collections_here())
    unpack(PACKS, MEASURED)
    if not datasets:
        print("no collection in $CITADEL_DATA/eval: the report shows existing measurements only")
    train_missing(options.train, list(datasets))
    export_missing(list(datasets))
    fill_missing(datasets)
    failed = measure_missing(datasets, options.only)
    time_missing(datasets, options.only)
    explain_passages()
    from citadel.paper.build import build_report

    for file in build_report(MEASURED, options.out):
        print(file)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CitadelError as error:
        sys.exit(f"reproduce: {error}")
