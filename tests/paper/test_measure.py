"""`citadel measure`: a tiny model per router on three documents, with the engine and with torch."""

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
from citadel.paper.engine import EngineSystem
from citadel.paper.record import QUERIES, RUN, Measurement, beside, read_measurement
from citadel.paper.run import fill, measure
from citadel.paper.system import SystemSpec
from citadel.types import Document
from tests.support.centroid_indexes import few_tokens
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
def test_torch_measures_match_the_engine(tmp_path: Path, router: str) -> None:
    folder = str(checkpoint(tmp_path, router))
    engine = measured(SystemSpec(folder, codecs=("fp16",), k=3), tmp_path / "engine.json")
    exact = measured(
        SystemSpec(folder, codecs=("fp16",), k=3, engine="torch", device="cpu"), tmp_path / "exact.json"
    )
    for name in (
        "measures",
        "stages",
        "postings",
        "list_sizes",
        "active_keys",
        "config",
        "documents",
        "queries",
    ):
        assert getattr(engine, name) == getattr(exact, name), name
    assert (engine.settings["engine"], exact.settings["engine"]) == ("native", "torch-exact")


@pytest.mark.parametrize("codec", ["fp16", "int8"])
@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_computed_bytes_match_the_index(tmp_path: Path, router: str, codec: str) -> None:
    folder = str(checkpoint(tmp_path, router))
    engine = measured(SystemSpec(folder, codecs=(codec,)), tmp_path / "engine.json")
    exact = measured(
        SystemSpec(folder, codecs=(codec,), engine="torch", device="cpu"), tmp_path / "exact.json"
    )
    assert engine.bytes == exact.bytes > 0


def test_residual_codes_make_a_centroid_index(tmp_path: Path) -> None:
    folder = str(checkpoint(tmp_path, "all_to_all"))
    with few_tokens(8):
        record = measured(SystemSpec(folder, codecs=("residual2",), k=3, timed=3), tmp_path / "m.json")
    exact = measured(SystemSpec(folder, k=3), tmp_path / "exact.json")
    assert (record.settings["router"], record.settings["codec"]) == ("centroid", "residual2")
    assert record.postings == exact.postings  # tokens
    assert record.note == "" and record.bytes > 0
    assert record.largest_lists[0][0].startswith("centroid ")
    tokens = record.stages["query_tokens"]
    assert record.stages["dot_products"] > exact.stages["dot_products"] >= 3 * tokens
    assert record.latency["milliseconds"]["search"]["mean"] > 0


def test_few_tokens_are_stored_as_int8(tmp_path: Path) -> None:
    folder = str(checkpoint(tmp_path, "all_to_all"))
    record = measured(SystemSpec(folder, codecs=("residual2",)), tmp_path / "m.json")
    assert record.note == "stored as int8: too few vectors to train residual2"


def test_dot_products_are_token_and_semantic_products(tmp_path: Path) -> None:
    record = measured(SystemSpec(str(checkpoint(tmp_path, "dynamic"))), tmp_path / "m.json")
    stages = record.stages
    assert stages["semantic_products"] == 3
    assert stages["dot_products"] == stages["token_products"] + 3
    assert sum(size * lists for size, lists in record.list_sizes) == record.postings


def test_active_keys_sum_to_the_postings(tmp_path: Path) -> None:
    record = measured(SystemSpec(str(checkpoint(tmp_path, "dynamic"))), tmp_path / "m.json")
    assert record.settings["tau"] == 0.2
    assert sum(keys * tokens for keys, tokens in enumerate(record.active_keys["0.2"])) == record.postings
    assert len({sum(counts) for counts in record.active_keys.values()}) == 1  # every τ counts every token


def test_each_variant_has_its_own_file(tmp_path: Path) -> None:
    spec = SystemSpec(str(checkpoint(tmp_path, "dynamic")), taus=(0.2, 1.0), codecs=("int8", "fp16"))
    files = measure(spec, DATASET, tmp_path / "m.json")
    assert [file.name for file in files] == [
        "m.tau0.2-int8-auto.json", "m.tau1-int8-auto.json", "m.tau0.2-fp16-auto.json",
    ]  # fmt: skip
    low, high, wide = map(read_measurement, files)
    assert high.postings < low.postings == wide.postings
    assert wide.bytes > low.bytes


def test_run_and_per_query_values_are_written(tmp_path: Path) -> None:
    record = measured(SystemSpec("bm25", name="BM25"), tmp_path / "bm25.json")
    assert (record.system, record.queries, record.measures["nDCG@10"]) == ("BM25", 2, 1.0)
    kept = json.loads(beside(tmp_path / "bm25.json", QUERIES).read_text())
    assert kept["measures"]["R@100"] == {"q1": 1.0, "q2": 1.0}
    assert kept["dot_products"] == {"q1": 4, "q2": 1}  # proposed 3 and relativity 1; evolution 1
    assert beside(tmp_path / "bm25.json", RUN).read_bytes()[:6] == b"\xfd7zXZ\x00"


def test_existing_measurement_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(SystemSpec("bm25"), DATASET, tmp_path / "bm25.json")
    monkeypatch.setattr(run, "_measure", lambda *_: pytest.fail("measured again"))
    measure(SystemSpec("bm25"), DATASET, tmp_path / "bm25.json")


def test_file_with_other_settings_is_rejected(tmp_path: Path) -> None:
    measure(SystemSpec("bm25"), DATASET, tmp_path / "bm25.json")
    with pytest.raises(InputError, match="other settings"):
        measure(SystemSpec("bm25", k=10), DATASET, tmp_path / "bm25.json")


def test_fill_adds_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(run, "judge", lambda *_: {})  # as if ir-measures were not installed
        assert measured(SystemSpec("bm25"), tmp_path / "bm25.json").measures == {}
    assert fill(tmp_path / "bm25.json", DATASET).measures["nDCG@10"] == 1.0
    assert read_measurement(tmp_path / "bm25.json").measures["R@100"] == 1.0
    assert json.loads(beside(tmp_path / "bm25.json", QUERIES).read_text())["dot_products"]["q2"] == 1
    with pytest.raises(InputError, match="measured on tiny, not on other"):
        fill(tmp_path / "bm25.json", replace(DATASET, name="other"))


def test_document_with_the_query_id_is_dropped(tmp_path: Path) -> None:
    own = replace(
        DATASET, queries={"d2": "darwin proposed evolution"}, qrels={"d2": {"d3": 1}}, drop_same_id=True
    )
    [file] = measure(SystemSpec("bm25", k=2), own, tmp_path / "m.json")
    assert read_measurement(file).measures["RR@10"] == 1.0  # d2 itself would be ranked first


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (SystemSpec("bm25", k=0), "depth from 1 to 1000"),
        (SystemSpec("bm25", engine="gpu"), "unknown engine"),
        (SystemSpec("bm25", engine="torch"), "needs the native engine"),
        (SystemSpec("no-such-folder"), "no such model"),
    ],
)
def test_invalid_spec_is_rejected(tmp_path: Path, spec: SystemSpec, message: str) -> None:
    with pytest.raises(CitadelError, match=message):
        measure(spec, DATASET, tmp_path / "m.json")


@pytest.mark.parametrize(
    ("router", "engine", "message"),
    [("static", "auto", "compares all tokens"), ("all_to_all", "torch", "needs the native engine")],
)
def test_residual_codes_need_a_colbert_model_and_the_engine(
    tmp_path: Path, router: str, engine: str, message: str
) -> None:
    folder = str(checkpoint(tmp_path, router))
    with pytest.raises(UsageError, match=message):
        measure(SystemSpec(folder, codecs=("residual2",), engine=engine), DATASET, tmp_path / "m.json")


@pytest.mark.parametrize("name", ["query", "document"])
def test_id_with_white_space_is_rejected_before_indexing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineSystem, "add", lambda *_: pytest.fail("documents were indexed"))
    changed = {
        "query": replace(DATASET, queries={"q 1": "evolution"}, qrels={"q 1": {"d1": 1}}),
        "document": replace(DATASET, documents=lambda: iter([*DOCUMENTS, Document("d 4", "rome")])),
    }
    with pytest.raises(InputError, match="does not fit a TREC run"):
        measure(SystemSpec("bm25"), changed[name], tmp_path / "m.json")


def test_tau_needs_the_dynamic_router(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dynamic router"):
        measure(SystemSpec(str(checkpoint(tmp_path, "static")), taus=(0.5,)), DATASET, tmp_path / "m.json")


def test_checkpoint_vectors_do_not_depend_on_padding(tmp_path: Path) -> None:
    """Texts of different lengths in one padded batch are encoded as if alone."""
    from citadel.model.texts import TorchTexts

    texts = TorchTexts(checkpoint(tmp_path, "dynamic"), "cpu", tau=0.0)
    several = texts.encode_queries([document.text for document in DOCUMENTS])
    for document, together in zip(DOCUMENTS, several, strict=True):
        [alone] = texts.encode_queries([document.text])
        assert alone.keys.tolist() == together.keys.tolist()
        assert alone.vectors is not None and together.vectors is not None
        np.testing.assert_allclose(alone.vectors, together.vectors, atol=1e-5)


def test_measure_with_torch_only(tmp_path: Path) -> None:
    """Without engine, ONNX Runtime, ir-measures, stemmer and zstd, runs and counts are written."""
    folder = checkpoint(tmp_path, "dynamic")
    beir = tmp_path / "tiny"
    (beir / "qrels").mkdir(parents=True)
    rows = [{"_id": document.id, "title": document.title, "text": document.text} for document in DOCUMENTS]
    (beir / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    queries = [{"_id": id, "text": text} for id, text in DATASET.queries.items()]
    (beir / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
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


def test_latency_is_recorded(tmp_path: Path) -> None:
    folder = str(checkpoint(tmp_path, "dynamic"))
    latency = measured(SystemSpec(folder, timed=2, device="cpu"), tmp_path / "m.json").latency
    assert latency["queries"] == 2 and latency["traffic"]["semantic_products"] == 3
    assert {"encode", "token retrieval", "sort", "ids", "whole"} <= set(latency["milliseconds"])
    assert measured(SystemSpec("bm25", timed=2), tmp_path / "b.json").latency == {}
    several = measure(
        SystemSpec(folder, taus=(0.0, 0.1), timed=2, device="cpu"), DATASET, tmp_path / "s.json"
    )
    stages = [read_measurement(file).latency["milliseconds"] for file in several]
    assert len(stages) == 2 and not any("encode" in each for each in stages)


def test_note_when_pq_has_too_few_vectors(tmp_path: Path) -> None:
    record = measured(
        SystemSpec(str(checkpoint(tmp_path, "dynamic")), codecs=("pq2",), device="cpu"), tmp_path / "m.json"
    )
    assert record.note == "stored as int8: too few vectors to train pq2"
