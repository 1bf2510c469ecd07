"""Measure every model in a folder on every collection, then print a table.

    python scripts/family.py runs/family --collections $CITADEL_DATA/eval/{scifact,vaswani} --out measured

A model is a checkpoint (`model.safetensors`) or an exported folder (`model.onnx`), named after its folder.
Existing measurements are kept, so an interrupted run can be resumed. Needs the package's sources and torch;
the engine, ONNX Runtime and ir-measures are used if installed. Without ir-measures only runs are written;
the same command fills in the measures on a machine that has it. `--pack F.tar.xz` archives all files.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from citadel.encode.config import load_config
from citadel.errors import CitadelError, UsageError
from citadel.eval.datasets import Dataset, beir_folder
from citadel.paper.names import system_name
from citadel.paper.record import read_measurement
from citadel.paper.run import fill, measure
from citadel.paper.system import SystemSpec
from citadel.progress import default_meter


def models_below(folder: Path) -> dict[str, str]:
    """Name → folder of every model in a folder; an exported model wins over its checkpoint."""
    models = {}
    for file in sorted([*folder.glob("*/model.safetensors"), *folder.glob("*/model.onnx")], reverse=True):
        models[system_name(file.parent.name)] = str(file.parent)
    return dict(sorted(models.items()))


def plans(options: argparse.Namespace) -> dict[str, SystemSpec]:
    """File name → system to measure, the sweep last."""
    common = {"k": options.k, "engine": options.engine, "device": options.device, "timed": options.latency}
    specs = {
        Path(model).name: SystemSpec(model, name, **common)
        for name, model in models_below(Path(options.models)).items()
    }
    if options.bm25:
        specs["bm25"] = SystemSpec("bm25", "BM25", k=options.k)
    if options.sweep:
        if options.sweep not in specs:
            raise UsageError(
                f"--sweep {options.sweep}: no such model in {options.models}: name one of its folders"
            )
        one = specs[options.sweep]
        specs[f"{options.sweep}-sweep"] = SystemSpec.sweep(
            one.model, one.name, load_config(one.model).tau, **common
        )
    return specs


def measure_all(options: argparse.Namespace) -> int:
    """Make the missing measurements; return the number of failures."""
    failed = 0
    for folder in options.collections:
        dataset = beir_folder(folder)
        for slug, plan in plans(options).items():
            try:
                file = Path(options.out, dataset.name, f"{slug}.json")
                for made in measure(plan, dataset, file, overwrite=options.overwrite, meter=default_meter()):
                    report(made, dataset)
            except CitadelError as error:  # continue with the others
                failed += 1
                print(f"{slug} on {dataset.name} was not measured: {error}", file=sys.stderr, flush=True)
    return failed


def report(made: Path, dataset: Dataset) -> None:
    """Print the measures of a measurement, computed first if missing and ir-measures is installed."""
    if not read_measurement(made).measures and importlib.util.find_spec("ir_measures"):
        fill(made, dataset)
    print(f"{made}: {dict(read_measurement(made).measures) or 'measures not computed yet'}", flush=True)


def show(out: str) -> None:
    from citadel.paper.family import family_table
    from citadel.paper.measured import read_folder

    print(family_table(read_folder(out)))


def pack(out: str, target: str) -> None:
    with tarfile.open(target, "w:xz") as archive:
        archive.add(out, Path(out).name)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", help="a folder whose subfolders are models")
    parser.add_argument("--collections", nargs="+", required=True, help="BEIR folders")
    parser.add_argument("--out", required=True, help="a folder for the measurements")
    parser.add_argument("-k", type=int, default=100)
    parser.add_argument("--engine", default="auto", choices=["auto", "native", "torch"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--bm25", action="store_true", help="also measure BM25; needs the engine")
    parser.add_argument(
        "--sweep", default="", metavar="NAME", help="also vary τ, codec and semantic vector of this model"
    )
    parser.add_argument(
        "--latency", type=int, default=0, metavar="N", help="time N queries per model; needs the engine"
    )
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--pack", default="", help="archive all measurements in this .tar.xz")
    options = parser.parse_args()
    failed = measure_all(options)
    show(options.out)
    if options.pack:
        pack(options.out, options.pack)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CitadelError as error:
        sys.exit(f"family: {error}")
