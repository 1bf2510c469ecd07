"""Indexing with torch: the same index as with ONNX Runtime, in order, resumable, with clear errors."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import citadel
from citadel.cli.main import run
from citadel.encode.encoder import Encoder
from citadel.errors import InputError, ResourceError, UsageError
from citadel.model import documents as pipeline
from citadel.model.citadel import Citadel
from citadel.model.documents import DocumentEncoder, parse_devices
from citadel.settings import LongDocuments
from citadel.types import Document
from tests.support.models import WORDS, ModelFolder, tiny_config, write_checkpoint

DEVICE = "torch-cpu"


def corpus(count: int, seed: int = 1) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(WORDS, k=rng.randrange(0, 40))) for _ in range(count)]
    return [{"id": f"d{number}", "text": text, "year": number} for number, text in enumerate(texts)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with the best posting per key."""
    pytest.importorskip("onnx", reason="models are exported with the extra [train]")
    from citadel.model.export import export

    folder = tmp_path_factory.mktemp("best-postings")
    checkpoint = write_checkpoint(folder / "checkpoint", tiny_config(tau=0.4, key_postings=1))
    return export(checkpoint, folder / "model", "fp32")[0]


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several windows for few documents."""
    monkeypatch.setattr(pipeline, "_WINDOW_TOKENS", 200)
    monkeypatch.setattr("citadel.encode.batches.DOCUMENTS_PER_GROUP", 7)


# The same index


def attend_text_by_text(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: torch.Tensor, longest: int
) -> torch.Tensor:
    """What the GPU's kernel for packed texts computes."""
    cuts = starts.tolist()[1:-1]
    parts = zip(*(whole.tensor_split(cuts) for whole in (q, k, v)), strict=True)
    assert longest == int(starts.diff().max())
    attend = torch.nn.functional.scaled_dot_product_attention
    return torch.cat([attend(*(each.transpose(0, 1) for each in part)).transpose(0, 1) for part in parts])


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_packed_texts_have_the_same_postings(
    pooling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without padding, as on a GPU: the same vectors up to rounding."""
    checkpoint = write_checkpoint(tmp_path / "model", tiny_config(tau=0.4, key_postings=1, pooling=pooling))
    documents = [Document(each["id"], each["text"]) for each in corpus(60)]
    batches = []
    for packs in (False, True):
        monkeypatch.setattr(pipeline, "can_pack", lambda *_, packs=packs: packs)
        monkeypatch.setattr("citadel.model.packed.attend", attend_text_by_text)
        encoder = DocumentEncoder(checkpoint, DEVICE, "fp32")
        batches.append([each.batch for each in encoder.encoded(documents, 1 << 30, LongDocuments())])
    for one, other in zip(*batches, strict=True):
        assert one.offsets.tolist() == other.offsets.tolist()
        assert one.keys.tolist() == other.keys.tolist()
        for name in ("weights", "vectors", "semantic"):
            assert np.allclose(getattr(one, name), getattr(other, name), atol=1e-5)


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("long", ["chunk", "cut"])
def test_same_postings_as_on_the_cpu(long: str, model: Path, tmp_path: Path) -> None:
    documents = corpus(60)
    indexes = []
    for device in ("cpu", DEVICE):
        index = citadel.Index.create(tmp_path / device, model=model, long=long, threads=1)
        added = index.add(documents, device=device, precision="fp32")
        assert added == 60
        indexes.append((index.commit(), added.cut, dict(index.counts)))
    (one, cut, counts), (other, *rest) = indexes
    assert [cut, counts] == rest
    for query in ("who proposed relativity", "rome gravity", "darwin"):
        given, hits = one.search(query, k=60), other.search(query, k=60)
        assert given.ids == hits.ids
        assert [hit.score for hit in given] == pytest.approx([hit.score for hit in hits], abs=0.05)
    assert abs(one.stats()["postings"] - other.stats()["postings"]) <= one.stats()["postings"] // 50
    assert len(other) == 60 and other.get("d7") == one.get("d7")


@pytest.mark.usefixtures("small_windows")
def test_order_of_documents_and_rows(model: Path) -> None:
    documents = [Document(row["id"], row["text"]) for row in corpus(50)]
    encoder = DocumentEncoder(model, DEVICE, "fp32")
    windows = [each.batch for each in encoder.encoded(iter(documents), 1 << 30, LongDocuments("cut"))]
    assert len(windows) > 3
    assert [document.id for batch in windows for document in batch.documents] == [d.id for d in documents]
    own, row = Encoder(model, threads=1), 0
    for batch in windows:
        for number in range(len(batch.documents)):
            expected = own.encode_documents([documents[row].encoded_text])[0]
            rows = slice(int(batch.offsets[number]), int(batch.offsets[number + 1]))
            assert batch.keys[rows].tolist() == expected.keys.tolist()
            np.testing.assert_allclose(batch.weights[rows], expected.weights, atol=1e-4)
            assert batch.vectors is not None and batch.semantic is not None
            assert expected.vectors is not None and expected.semantic is not None
            np.testing.assert_allclose(batch.vectors[rows], expected.vectors, atol=1e-4)
            np.testing.assert_allclose(batch.semantic[number], expected.semantic, atol=1e-4)
            row += 1


def test_two_devices_keep_the_order(
    model: Path, small_windows: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "parse_devices", lambda names: [torch.device("cpu")] * 2)
    documents = [Document(row["id"], row["text"]) for row in corpus(80)]
    encoder = DocumentEncoder(model, "cuda:0,cuda:1", "fp32")
    found = [
        document.id
        for each in encoder.encoded(iter(documents), 1 << 30, LongDocuments("cut"))
        for document in each.batch.documents
    ]
    assert found == [document.id for document in documents]


def test_bf16(model: Path, tmp_path: Path) -> None:
    index = citadel.Index.create(tmp_path / "idx", model=model, threads=1)
    assert index.add(corpus(20), device=DEVICE) == 20
    assert index.commit().search("who proposed relativity", k=3).ids


# Errors


@pytest.mark.usefixtures("small_windows")
def test_documents_before_a_bad_one_are_kept(model: Path, tmp_path: Path) -> None:
    index = citadel.Index.create(tmp_path / "idx", model=model, threads=1)
    rows = [*corpus(30), {"id": "bad", "text": 7}, {"id": "never", "text": "rome"}]
    with pytest.raises(InputError, match="text"):
        index.add(rows, device=DEVICE)
    assert len(index.commit()) == 30 and "never" not in index


@pytest.mark.usefixtures("small_windows")
def test_other_errors_of_the_stream_drop_the_call_and_end_the_threads(model: Path, tmp_path: Path) -> None:
    def stream() -> Iterator[dict[str, Any]]:
        yield from corpus(30)
        raise RuntimeError("the stream broke")

    index = citadel.Index.create(tmp_path / "idx", model=model, threads=1)
    before = set(threading.enumerate())
    with pytest.raises(RuntimeError, match="the stream broke"):
        index.add(stream(), device=DEVICE)
    assert not index.has_changes
    new = set(threading.enumerate()) - before
    assert not [thread for thread in new if thread.name.startswith("citadel-")]


class Exhausted:
    """Raises CUDA's error for batches above a number of texts."""

    def __init__(self, limit: int) -> None:
        self.limit, self.encode, self.sizes = limit, Citadel.encode, list[int]()

    def method(self) -> Any:
        def encode(model: Any, *args: Any, **options: Any) -> Any:
            return self.run(model, *args, **options)

        return encode

    def run(self, model: Any, ids: torch.Tensor, *rest: Any, **options: Any) -> Any:
        self.sizes.append(ids.numel())
        if ids.numel() > self.limit:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return self.encode(model, ids, *rest, **options)


def test_smaller_batches_after_running_out_of_memory(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exhausted = Exhausted(1200)
    monkeypatch.setattr(Citadel, "encode", exhausted.method())
    index = citadel.Index.create(tmp_path / "idx", model=model, threads=1)
    assert index.add(corpus(300), device=DEVICE, precision="fp32") == 300
    assert exhausted.sizes[0] > 2000 and max(exhausted.sizes[4:]) <= 1200
    assert len(index.commit()) == 300


def test_out_of_memory_keeps_the_last_commit(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = citadel.Index.create(tmp_path / "idx", model=model, threads=1)
    index.add(corpus(5))
    index.commit()
    monkeypatch.setattr(Citadel, "encode", Exhausted(0).method())
    with pytest.raises(ResourceError, match=r"cpu: out of memory while encoding .* lower --batch-tokens"):
        index.add(corpus(40, seed=2), device=DEVICE)
    assert not index.has_changes and len(index.refresh()) == 5
    index.check(deep=True)


def test_devices_that_do_not_exist(model: Path, tmp_path: Path) -> None:
    index = citadel.Index.create(tmp_path / "idx", model=model, threads=1)
    for device, message in (
        ("cuda:99", "no usable CUDA device|without CUDA|no device cuda:99"),
        ("gpu", "unknown device 'gpu'"),
        ("cpu,cpu", "name GPUs"),
    ):
        with pytest.raises(UsageError, match=message):
            index.add(corpus(2), device=device)
    with pytest.raises(UsageError, match="unknown precision 'fp8'"):
        index.add(corpus(2), device=DEVICE, precision="fp8")
    assert not index.has_changes
    words = citadel.Index.create(tmp_path / "words", model="bm25")
    with pytest.raises(UsageError, match="no model"):
        words.add(corpus(2), device=DEVICE)
    assert parse_devices(DEVICE) == [torch.device("cpu")]


def test_models_of_other_routers_are_refused(tiny_model: ModelFolder, tmp_path: Path) -> None:
    index = citadel.Index.create(tmp_path / "idx", model=tiny_model("static"), threads=1)
    with pytest.raises(UsageError, match="dynamic routers, not static"):
        index.add(corpus(2), device=DEVICE)


# The command line


def test_index_resumes_on_another_device(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = tmp_path / "corpus.jsonl", str(tmp_path / "idx")
    file.write_text("".join(json.dumps(row) + "\n" for row in corpus(60)))
    command = [
        "index",
        str(file),
        folder,
        "--model",
        str(model),
        "--device",
        DEVICE,
        "--commit-bytes",
        "2000",
    ]
    commits = 0
    commit = citadel.Index.commit

    def interrupted(index: citadel.Index, *args: Any, **options: Any) -> Any:
        nonlocal commits
        commits += 1
        if commits == 3:
            raise KeyboardInterrupt
        return commit(index, *args, **options)

    monkeypatch.setattr(citadel.Index, "commit", interrupted)
    assert run(command) == 130
    monkeypatch.setattr(citadel.Index, "commit", commit)
    kept = len(citadel.Index.open(folder, model=model))
    assert 0 < kept < 60
    assert run([*command[:-4], "--threads", "1"]) == 0
    assert f"{kept} documents already indexed" in capsys.readouterr().err
    assert list(citadel.Index.open(folder, model=model).ids()) == [row["id"] for row in corpus(60)]
    file.write_text("".join(json.dumps(row) + "\n" for row in corpus(70)[60:]))
    assert run(["add", folder, str(file), "--model", str(model), "--device", DEVICE]) == 0
    assert len(citadel.Index.open(folder, model=model)) == 70


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "bm25", "--device", "cuda"], "--device cuda is for a model"),
        (["--device", "tpu"], "unknown device 'tpu'"),
        (["--device", "cuda:99"], "or use --device cpu"),
        (["--device", DEVICE, "--precision", "int4"], "unknown precision"),
    ],
)
def test_usage_errors(
    options: list[str], message: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_text(json.dumps(corpus(1)[0]) + "\n")
    given = options if "--model" in options else ["--model", str(model), *options]
    kept = citadel.Index.create(tmp_path / "idx", model="bm25")
    kept.add(corpus(3))
    kept.commit()
    assert run(["index", str(file), str(tmp_path / "idx"), "--overwrite", *given]) == 2
    assert message in capsys.readouterr().err
    assert len(citadel.Index.open(tmp_path / "idx")) == 3


def test_without_torch(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "citadel.model.documents", None)
    index = citadel.Index.create(tmp_path / "idx", model=model, threads=1)
    with pytest.raises(UsageError, match=r"--device cuda needs .*\[gpu\]"):
        index.add(corpus(2), device="cuda")
    assert not index.has_changes
