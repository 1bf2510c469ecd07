"""`citadel measure`: a tiny model of each router on three documents, through the engine and through torch alone."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from citadel.errors import CitadelError, InputError, UsageError
from citadel.eval.datasets import Dataset, beir_folder
from citadel.paper import run
from citadel.paper.record import QUERIES, RUN, Measurement, beside, read_measurement
from citadel.paper.run import fill, measure
from citadel.paper.system import SystemSpec
from citadel.types import Document
from tests.support.models import ROUTERS, tiny_config, write_checkpoint

pytest.importorskip("torch", reason="torch is not installed: the extra [train]")
pytest.importorskip("ir_measures", reason="ir-measures is not installed: the extra [eval]")

DOCUMENTS = [
    Document("d1", "einstein proposed relativity in physics", title="relativity"),
    Document("d2", "darwin proposed evolution"),
    Document("d3", "newton proposed gravity in physics"),
]
DATASET = Dataset(
    "tiny",
    {"q1": "who proposed relativity", "q2": "evolution", "q3": "the history of rome"},
    {"q1": {"d1": 1}, "q2": {"d2": 2}},
    lambda: iter(DOCUMENTS),
)


def checkpoint(folder: Path, router: str) -> Path:
    config = tiny_config(router, query_padding=0)
    return write_checkpoint(folder / router, replace(config, tau=0.2) if router == "dynamic" else config)


def measured(spec: SystemSpec, out: Path) -> Measurement:
    [file] = measure(spec, DATASET, out)
    return read_measurement(file)


@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_torch_alone_says_what_the_engine_says(tmp_path: Path, router: str) -> None:
    folder = str(checkpoint(tmp_path, router))
    engine = measured(SystemSpec(folder, codecs=("fp16",), k=3), tmp_path / "engine.json")
    exact = measured(SystemSpec(folder, codecs=("fp16",), k=3, engine="torch", device="cpu"), tmp_path / "exact.json")
    for name in ("measures", "stages", "postings", "list_sizes", "active_keys", "config", "documents", "queries"):
        assert getattr(engine, name) == getattr(exact, name), name
    assert (engine.settings["engine"], exact.settings["engine"]) == ("native", "torch-exact")


@pytest.mark.parametrize("codec", ["fp16", "int8"])
@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_computed_bytes_are_those_of_the_index(tmp_path: Path, router: str, codec: str) -> None:
    folder = str(checkpoint(tmp_path, router))
    engine = measured(SystemSpec(folder, codecs=(codec,)), tmp_path / "engine.json")
    exact = measured(SystemSpec(folder, codecs=(codec,), engine="torch", device="cpu"), tmp_path / "exact.json")
    assert engine.bytes == exact.bytes > 0


def test_products_are_those_of_the_lists_and_the_semantic_scan(tmp_path: Path) -> None:
    found = measured(SystemSpec(str(checkpoint(tmp_path, "dynamic"))), tmp_path / "m.json")
    stages = found.stages
    assert stages["semantic_products"] == 3
    assert stages["dot_products"] == stages["token_products"] + 3
    assert sum(size * lists for size, lists in found.list_sizes) == found.postings


def test_every_posting_is_a_live_key_of_a_token(tmp_path: Path) -> None:
    found = measured(SystemSpec(str(checkpoint(tmp_path, "dynamic"))), tmp_path / "m.json")
    assert found.settings["tau"] == 0.2
    assert sum(keys * tokens for keys, tokens in enumerate(found.active_keys["0.2"])) == found.postings
    assert len({sum(counts) for counts in found.active_keys.values()}) == 1  # every τ counts every token


def test_each_setting_is_varied_alone_in_a_file_of_its_own(tmp_path: Path) -> None:
    spec = SystemSpec(str(checkpoint(tmp_path, "dynamic")), taus=(0.2, 1.0), codecs=("int8", "fp16"))
    files = measure(spec, DATASET, tmp_path / "m.json")
    assert [file.name for file in files] == [
        "m.tau0.2-int8-auto.json", "m.tau1-int8-auto.json", "m.tau0.2-fp16-auto.json",
    ]  # fmt: skip
    low, high, wide = map(read_measurement, files)
    assert high.postings < low.postings == wide.postings
    assert wide.bytes > low.bytes


def test_run_and_values_of_each_query_stand_beside_it(tmp_path: Path) -> None:
    found = measured(SystemSpec("bm25", name="BM25"), tmp_path / "bm25.json")
    assert (found.system, found.queries, found.measures["nDCG@10"]) == ("BM25", 2, 1.0)
    kept = json.loads(beside(tmp_path / "bm25.json", QUERIES).read_text())
    assert kept["measures"]["R@100"] == {"q1": 1.0, "q2": 1.0}
    assert kept["dot_products"] == {"q1": 4, "q2": 1}  # proposed 3 and relativity 1; evolution 1
    assert beside(tmp_path / "bm25.json", RUN).read_bytes()[:6] == b"\xfd7zXZ\x00"


def test_what_is_measured_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(SystemSpec("bm25"), DATASET, tmp_path / "bm25.json")
    monkeypatch.setattr(run, "_measure", lambda *_: pytest.fail("measured again"))
    measure(SystemSpec("bm25"), DATASET, tmp_path / "bm25.json")


def test_other_settings_in_the_same_file_are_refused(tmp_path: Path) -> None:
    measure(SystemSpec("bm25"), DATASET, tmp_path / "bm25.json")
    with pytest.raises(InputError, match="other settings"):
        measure(SystemSpec("bm25", k=10), DATASET, tmp_path / "bm25.json")


def test_measures_can_be_filled_in_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as here:
        here.setattr(run, "judge", lambda *_: {})  # as where ir-measures is not installed
        assert measured(SystemSpec("bm25"), tmp_path / "bm25.json").measures == {}
    assert fill(tmp_path / "bm25.json", DATASET).measures["nDCG@10"] == 1.0
    assert read_measurement(tmp_path / "bm25.json").measures["R@100"] == 1.0
    assert json.loads(beside(tmp_path / "bm25.json", QUERIES).read_text())["dot_products"]["q2"] == 1
    with pytest.raises(InputError, match="measured on tiny, not on other"):
        fill(tmp_path / "bm25.json", replace(DATASET, name="other"))


def test_a_document_that_is_the_query_is_dropped(tmp_path: Path) -> None:
    own = replace(DATASET, queries={"d2": "darwin proposed evolution"}, qrels={"d2": {"d3": 1}}, drop_same_id=True)
    [file] = measure(SystemSpec("bm25", k=2), own, tmp_path / "m.json")
    assert read_measurement(file).measures["RR@10"] == 1.0  # d2 itself stood before d3


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (SystemSpec("bm25", k=0), "depth from 1 to 1000"),
        (SystemSpec("bm25", engine="gpu"), "unknown engine"),
        (SystemSpec("bm25", engine="torch"), "through the engine"),
        (SystemSpec("no-such-folder"), "no such model"),
    ],
)
def test_what_cannot_be_measured_says_why(tmp_path: Path, spec: SystemSpec, says: str) -> None:
    with pytest.raises(CitadelError, match=says):
        measure(spec, DATASET, tmp_path / "m.json")


def test_tau_is_for_the_dynamic_router(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dynamic router"):
        measure(SystemSpec(str(checkpoint(tmp_path, "static")), taus=(0.5,)), DATASET, tmp_path / "m.json")


def test_vectors_of_a_checkpoint_are_those_of_the_formulas(tmp_path: Path) -> None:
    """Texts of different lengths in one padded batch give what each gives alone."""
    from citadel.model.texts import TorchTexts

    texts = TorchTexts(checkpoint(tmp_path, "dynamic"), "cpu", tau=0.0)
    several = texts.encode_queries([document.text for document in DOCUMENTS])
    for document, together in zip(DOCUMENTS, several, strict=True):
        [alone] = texts.encode_queries([document.text])
        assert alone.keys.tolist() == together.keys.tolist()
        assert alone.vectors is not None and together.vectors is not None
        np.testing.assert_allclose(alone.vectors, together.vectors, atol=1e-5)


def test_a_bare_machine_measures_with_torch_and_fills_in_later(tmp_path: Path) -> None:
    """No engine, ONNX Runtime, ir-measures, stemmer or zstd: runs and counts are written all the same."""
    folder = checkpoint(tmp_path, "dynamic")
    beir = tmp_path / "tiny"
    (beir / "qrels").mkdir(parents=True)
    rows = [{"_id": document.id, "title": document.title, "text": document.text} for document in DOCUMENTS]
    (beir / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = [{"_id": id, "text": text} for id, text in DATASET.queries.items()]
    (beir / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    (beir / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t2\n")
    absent = [
        "citadel._native",
        "onnxruntime",
        "ir_measures",
        "pytrec_eval",
        "Stemmer",
        "backports.zstd",
        "rich",
        "onnx",
    ]
    code = f"import sys; sys.modules.update(dict.fromkeys({absent!r})); from citadel.cli.main import run; "
    arguments = ["measure", str(folder), "--collection", str(beir), "--out", str(tmp_path / "m.json")]
    done = subprocess.run(
        [sys.executable, "-c", code + "sys.exit(run(sys.argv[1:]))", *arguments, "--device", "cpu"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "measures not computed yet" in done.stdout
    filled = fill(tmp_path / "m.json", beir_folder(beir))
    engine = measured(SystemSpec(str(folder), codecs=("fp16",)), tmp_path / "engine.json")
    assert (filled.measures, filled.stages) == (engine.measures, engine.stages)


def test_latency_goes_into_the_measurement(tmp_path: Path) -> None:
    folder = str(checkpoint(tmp_path, "dynamic"))
    found = measured(SystemSpec(folder, timed=2, device="cpu"), tmp_path / "m.json").latency
    assert found["queries"] == 2 and found["traffic"]["semantic_products"] == 3
    assert {"encode", "token retrieval", "sort", "ids", "whole"} <= set(found["milliseconds"])
    assert measured(SystemSpec("bm25", timed=2), tmp_path / "b.json").latency == {}
    several = measure(SystemSpec(folder, taus=(0.0, 0.1), timed=2, device="cpu"), DATASET, tmp_path / "s.json")
    stages = [read_measurement(file).latency["milliseconds"] for file in several]  # alike, so that they compare
    assert len(stages) == 2 and not any("encode" in each for each in stages)


def test_a_codec_without_vectors_enough_says_how_it_was_stored(tmp_path: Path) -> None:
    found = measured(
        SystemSpec(str(checkpoint(tmp_path, "dynamic")), codecs=("pq2",), device="cpu"), tmp_path / "m.json"
    )
    assert found.note == "stored as int8: too few vectors to train pq2 from"
