"""`make reproduce` on a tiny collection with a tiny model."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.models import tiny_config, write_checkpoint

for needed in ("torch", "onnx", "ir_measures", "matplotlib"):
    pytest.importorskip(needed, reason=f"{needed} is not installed: the extras [train], [eval] and [report]")

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script with temporary folders, one collection of two documents and one model."""
    spec = importlib.util.spec_from_file_location("reproduce", ROOT / "scripts" / "reproduce.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "reproduce", module)
    spec.loader.exec_module(module)
    beir = tmp_path / "data" / "eval" / "tiny"
    (beir / "qrels").mkdir(parents=True)
    rows = [
        {"_id": "d1", "text": "einstein proposed relativity"},
        {"_id": "d2", "text": "darwin proposed evolution"},
    ]
    (beir / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (beir / "queries.jsonl").write_text(
        '{"_id": "q1", "text": "relativity"}\n{"_id": "q2", "text": "evolution"}\n'
    )
    (beir / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t1\n")
    for name, folder in (
        ("MODELS", "models"),
        ("MEASURED", "measured"),
        ("PACKS", "packs"),
        ("CONFIGS", "configs"),
    ):
        monkeypatch.setattr(module, name, tmp_path / folder)
    monkeypatch.setenv("CITADEL_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "argv", ["reproduce.py", "--out", str(tmp_path / "report")])
    write_checkpoint(tmp_path / "models" / "citadel", tiny_config("dynamic"))
    return module


def test_measurements_are_made_once(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main() == 0
    assert "3 measurements to make" in capsys.readouterr().out
    made = sorted(file.name for file in (tmp_path / "measured" / "tiny").glob("*.json"))
    kept = [name for name in made if not name.endswith(".queries.json")]
    assert kept[:2] == ["bm25.json", "citadel-sweep.tau0.5-int8-auto.json"] and "citadel.json" in kept
    # Six values of τ and the model's own, three other codecs, one without the semantic vector.
    assert len(kept) == 2 + 11
    assert (tmp_path / "report" / "report.html").is_file()
    file = tmp_path / "measured" / "tiny" / "citadel.json"
    once = json.loads(file.read_text())
    # As if measured on another machine, without latency.
    file.write_text(json.dumps({**once, "latency": {}, "machine": {"cpu": "elsewhere"}}))
    assert script.main() == 0
    output, again = capsys.readouterr().out, json.loads(file.read_text())
    assert "0 measurements to make" in output and output.count("timing") == 1
    assert set(again["latency"]) == set(once["latency"]) and again["machine"] == {"cpu": "elsewhere"}


def test_missing_measures_are_filled_in(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    datasets, kept = dict(script.collections_here()), tmp_path / "measured" / "tiny" / "bm25.json"
    with monkeypatch.context() as bare:
        bare.setitem(sys.modules, "ir_measures", None)
        assert script.measure_missing(datasets, ["bm25"]) == 0
        script.fill_missing(datasets)
        assert "measures need the package ir-measures" in capsys.readouterr().out
    assert json.loads(kept.read_text())["measures"] == {}
    script.fill_missing(datasets)
    assert json.loads(kept.read_text())["measures"]["nDCG@10"] == 1.0
    assert f"{kept}: measures computed" in capsys.readouterr().out


def test_missing_model_is_reported_with_its_training_time(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'name = "citadel"\n[model]\nbackbone = "b"\nrouter = "dynamic"\n[data]\nfolder = "f"\n'
    text += "[optimizer]\nsteps = 1000\nbatch = 128\n"
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "citadel.toml").write_text(text)
    (tmp_path / "configs" / "colbert.toml").write_text(text.replace("dynamic", "all_to_all"))
    (tmp_path / "measured" / "tiny").mkdir(parents=True)
    (tmp_path / "measured" / "tiny" / "keys-7.json").write_text("{}")  # measured, so its model is not needed
    script.train_missing(allowed=False, collections=["tiny"])
    output = capsys.readouterr().out
    # 1,000 steps of 128 queries with 8 passages each, at 9,537 passages per second
    assert "colbert: not trained; about 1.8 minutes on one H200" in output
    assert "keys-9: not trained" in output and "GPU minutes in all" in output and "TRAIN=1" in output
    assert "citadel: not" not in output and "keys-7: not" not in output


def test_keys_sweep_configs_differ_only_in_keys(script: ModuleType, tmp_path: Path) -> None:
    text = 'name = "citadel"\n[model]\nbackbone = "b"\nrouter = "dynamic"\ntau = 0.9\n[data]\nfolder = "f"\n'
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "citadel.toml").write_text(text + "[optimizer]\nsteps = 9000\n")
    one, nine = (script.config_of(tmp_path / "models" / f"keys-{keys}") for keys in (1, 9))
    assert (one.model.settings["document_keys"], nine.model.settings["document_keys"]) == (1, 9)
    assert one.model.settings["tau"] == 0.0 and one.optimizer == nine.optimizer
    assert one.optimizer.steps == script.KEYS_STEPS
