"""Run all peers on one collection, one after the other on one core; print one table.

    python benchmarks/peers/prepare.py …                       # once
    python benchmarks/peers/run.py build/peers/cranfield       # --python PATH: interpreter with the peers
    python benchmarks/peers/run.py build/peers/cranfield --collection $CITADEL_DATA/eval/cranfield \\
           --family runs/family                                # both steps

The results are written to results/peers-NAME.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from common import report

from citadel.eval import evaluate
from citadel.types import Hit, Ranking

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "src"
LIMIT = 1800  # seconds per peer
# script, argument, the model whose exact ranking it is compared with
PEERS = [
    ("with_citadel.py", "bm25", ""),
    ("with_bm25s.py", "", ""),
    ("with_tantivy.py", "", ""),
    ("with_citadel.py", "citadel", ""),
    ("with_citadel.py", "colbert", "colbert"),
    ("with_citadel.py", "colbert int8 256", "colbert"),
    ("with_citadel.py", "colbert residual4 512", "colbert"),
    ("with_citadel.py", "colbert residual2 512", "colbert"),
    ("with_faiss.py", "", "colbert"),
    ("with_plaid.py", "4", "colbert"),
    ("with_plaid.py", "2", "colbert"),
    ("with_lancedb.py", "", "colbert"),
    ("with_qdrant.py", "exact", "colbert"),
    ("with_qdrant.py", "hnsw", "colbert"),
    ("with_citadel.py", "splade", "splade"),
    ("with_seismic.py", "", "splade"),
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter that has the peers installed"
    )
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument(
        "--collection", default="", help="a BEIR folder to prepare first, with the models of --family"
    )
    parser.add_argument("--family", default="runs/family")
    options = parser.parse_args()
    folder = Path(options.folder)
    if options.collection:
        prepare(options.collection, folder, options.family)
    rows, kept, load = [], [], [os.getloadavg()[0]]
    for script, argument, model in PEERS:
        if options.only and script not in options.only:
            continue
        python = sys.executable if "citadel" in script else options.python
        result = run_one(script, argument, folder, python)
        kept.append({name: value for name, value in result.items() if name != "ranked"})
        rows.append(row(result, folder, model))
        load.append(os.getloadavg()[0])
        print(rows[-1], flush=True)
    columns = [
        "peer",
        "nDCG@10",
        "overlap@10 with exact",
        "p50 ms",
        "p95 ms",
        "build s",
        "disk MB",
        "peak MB",
        "note",
    ]
    title = f"{folder.name}, one core, k = 100, one query at a time"
    loads = f"load average {min(load):.1f} to {max(load):.1f}"
    report(f"peers-{folder.name}", title, columns, rows, peers=kept, models=models_of(folder), load=loads)


def prepare(collection: str, folder: Path, family: str) -> None:
    """Prepare texts and vectors in a child process, to keep torch and the encoder out of this one."""
    command = [sys.executable, str(HERE / "prepare.py"), collection, str(folder), "--family", family]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(SOURCE)})


def models_of(folder: Path) -> dict[str, Any]:
    """The models that made the vectors."""
    files = [folder / f"{name}.json" for name in ("citadel", "colbert", "splade")]
    return {file.stem: json.loads(file.read_text()) for file in files if file.is_file()}


def run_one(script: str, argument: str, folder: Path, python: str) -> dict[str, Any]:
    """Run one peer in a child process; its figures, or the reason why there are none."""
    name = f"{script.removeprefix('with_').removesuffix('.py')} {argument}".strip()
    with tempfile.TemporaryDirectory(prefix="citadel-peer-") as scratch:
        command = [
            python,
            str(HERE / script),
            str(folder),
            str(Path(scratch, "index")),
            *([argument] if argument else []),
        ]
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "RAYON_NUM_THREADS": "1",
            "PYTHONPATH": str(SOURCE),
        }
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=LIMIT, env=environment, check=False
            )
        except subprocess.TimeoutExpired:
            return {"peer": name, "unable": f"not done after {LIMIT} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"peer": name, "unable": f"exit {done.returncode}: {last[:160]}"}
    return dict(json.loads(lines[-1]))


def row(result: dict[str, Any], folder: Path, model: str) -> list[Any]:
    """The row of a peer in the table."""
    if "unable" in result:
        return [result["peer"], *["–"] * 7, result["unable"]]
    figures = [result[name] for name in ("p50_ms", "p95_ms", "build_s")]
    sizes = [round(result[name] / 1e6, 1) for name in ("disk_bytes", "peak_bytes")]
    return [
        result["peer"],
        quality(result["ranked"], folder),
        overlap(result["ranked"], folder, model),
        *figures,
        *sizes,
        "",
    ]


def quality(ranked: list[list[int]], folder: Path) -> float:
    """nDCG@10 of the rankings."""
    ids = json.loads((folder / "documents.json").read_text())["ids"]
    queries = json.loads((folder / "queries.json").read_text())["ids"]
    hits = (tuple(Hit(ids[n], float(-rank), rank) for rank, n in enumerate(one, 1)) for one in ranked)
    qrels = json.loads((folder / "qrels.json").read_text())
    return round(evaluate(Ranking(tuple(queries), tuple(hits)), qrels, "nDCG@10")["nDCG@10"], 4)


def overlap(ranked: list[list[int]], folder: Path, model: str) -> float | str:
    """Share of the exact top 10 in the top 10, over all queries."""
    exact = json.loads((folder / "exact.json").read_text()).get(model)
    if exact is None:
        return "–"
    shares = [
        len(set(one[:10]) & set(best[:10])) / len(best[:10]) for one, best in zip(ranked, exact, strict=True)
    ]
    return round(sum(shares) / len(shares), 4)


if __name__ == "__main__":
    main()
