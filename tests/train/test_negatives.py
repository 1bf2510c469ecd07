"""Mining and scoring on five passages, with BM25, a random sentence encoder, and every router of a random model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citadel.cli.main import run
from citadel.errors import InputError, UsageError
from citadel.train.config_tables import DataPart
from citadel.train.negatives import mine, mined_lines
from citadel.train.rankers import RankedPassages
from citadel.train.readers import read_source
from tests.train.conftest import PAIRS

torch = pytest.importorskip("torch", reason="torch is not installed: `pip install citadel-ir[train]`")

Write = Callable[[str, Any], str]


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def part(folder: Path) -> DataPart:
    return DataPart(folder=str(folder), held_out=False, query_length=12, passage_length=24)


class Fixed:
    """Ranks every passage with scores that a reader can check."""

    def rank(self, query: Any, positive: Any, k: int) -> Iterator[RankedPassages]:
        for _ in query:
            yield RankedPassages(np.array([4, 1, 0, 2, 3]), np.array([9, 8, 7, 6, 5], np.float32), 7.0)


def mined(folder: Path, k: int, margin: float) -> dict[str, Any]:
    """The line of "what pumps blood", whose positive d1 scores 7 and has d5 for a copy."""
    source = read_source(part(folder))
    lines = list(mined_lines(source, Fixed(), source.query[:1], source.positive[:1], k, margin))
    found: dict[str, Any] = json.loads(lines[0])
    return found


def test_known_positives_and_their_copies_are_no_negatives(folder: Path) -> None:
    line = mined(folder, 2, -math.inf)
    assert line == {
        "query": "what pumps blood",
        "positive": "d1",
        "negatives": ["d2", "d3"],
        "scores": [8, 6],
        "positive_score": 7,
    }


def test_the_margin_drops_what_scores_too_well(folder: Path) -> None:
    line = mined(folder, 9, 0.5)  # all above 6.5 are dropped
    assert (line["negatives"], line["scores"], line["dropped"]) == (["d3", "d4"], [6, 5], ["d2"])
    assert mined(folder, 9, 1.5)["negatives"] == ["d4"]


def test_bm25_through_the_engine(folder: Path) -> None:
    out = folder / "negatives.jsonl"
    assert mine(part(folder), "bm25", out, k=3) == 4
    found = rows(out)
    assert [(row["query"], row["positive"]) for row in found] == [(query, id) for query, id, _ in PAIRS]
    assert found[0]["negatives"] == []  # d1 and its copy d5 alone say "pumps" or "blood"
    assert found[0]["positive_score"] > 0
    assert sorted(path.name for path in folder.iterdir()) == ["negatives.jsonl", "pairs.jsonl", "passages.jsonl"]


def test_a_sentence_encoder_through_torch(folder: Path, backbone: Path) -> None:
    """The mined order is that of the cosines."""
    out = folder / "negatives.jsonl"
    mine(part(folder), f"dense:{backbone}", out, k=3, device="cpu")
    for row in rows(out):
        assert row["scores"] == sorted(row["scores"], reverse=True)
        assert all(-1.001 <= score <= 1.001 for score in [*row["scores"], row["positive_score"]])
        assert row["positive"] not in row["negatives"] and len(row["negatives"]) == 3
    assert "d5" not in rows(out)[0]["negatives"]


@pytest.mark.parametrize("router", ["none", "static", "dynamic", "sparse", "all_to_all"])
def test_torch_and_the_formula_rank_alike(router: str, folder: Path, backbone: Path, tmp_path: Path) -> None:
    """Every router: what the torch encoder and search mine is what the model's own training score says."""
    from citadel.encode.config import ModelConfig
    from citadel.model.checkpoint import load_model, new_model, save_model
    from citadel.model.encoder import TorchEncoder
    from citadel.train.inputs import Marker
    from citadel.train.tokens import load_tokenizer, pad, special_tokens, tokenize

    torch.manual_seed(3)
    tokenizer = load_tokenizer(backbone)
    special = special_tokens(tokenizer)
    config = ModelConfig(
        router,
        token_dimension=8 if router in ("static", "dynamic", "all_to_all") else 0,
        semantic_dimension=8 if router in ("none", "dynamic") else 0,
        cls_id=special.cls,
        sep_id=special.sep,
        pad_id=special.pad,
        mask_id=special.mask,
    )
    model, _ = new_model(config, str(backbone))
    save_model(model, tmp_path / "model", backbone / "tokenizer.json")
    out = folder / "negatives.jsonl"
    mine(part(folder), str(tmp_path / "model"), out, k=4, device="cpu")

    source = read_source(part(folder))
    loaded = load_model(tmp_path / "model")
    mark = Marker(loaded.config, [])
    sides = []
    for texts, query in ((source.queries, True), (source.passages.texts, False)):
        table = tokenize(texts, tokenizer, 12 if query else 24)
        ids, mask = pad([table[row] for row in range(len(table))], special.pad)
        marked = mark(torch.from_numpy(ids), torch.from_numpy(mask), query)
        with torch.no_grad():
            sides.append(loaded.encode(marked.ids, marked.mask, marked.routed, query=query))
    scores = loaded.score(*sides)  # [4, 5]
    for place, row in enumerate(rows(out)):
        listed = dict(zip(row["negatives"], row["scores"], strict=True)) | {row["positive"]: row["positive_score"]}
        wanted = dict(zip(source.passages.ids.texts, scores[place].tolist(), strict=True))
        for id, value in listed.items():
            if value is not None:
                assert value == pytest.approx(wanted[id], rel=1e-3, abs=1e-4)
        assert row["scores"] == sorted(row["scores"], reverse=True)
    assert TorchEncoder(loaded, mark).encode([]).size == 0


# ---- teachers --------------------------------------------------------------------------------------------------------


@pytest.fixture
def negatives(write: Write) -> str:
    lines = [{"query": query, "positive": id, "negatives": ["d2", "d3", "d4"]} for query, id, _ in PAIRS[:1]]
    return write("negatives.jsonl", lines)


def score(folder: Path, *options: str) -> int:
    passages, out = str(folder / "passages.jsonl"), str(folder / "scores.jsonl")
    return run(["score", "--passages", passages, "--out", out, "--device", "cpu", *options])


def test_a_dense_teacher(folder: Path, backbone: Path, negatives: str) -> None:
    """The teacher's scores are the cosines that mining with the same encoder finds."""
    mined_out = folder / "mined.jsonl"
    mine(part(folder), f"dense:{backbone}", mined_out, k=5, device="cpu")
    assert score(folder, "--kind", "dense", "--teacher", str(backbone), "--negatives", negatives) == 0
    (row,) = rows(folder / "scores.jsonl")
    assert row["passages"] == ["d1", "d2", "d3", "d4"] and row["positive"] == "d1"
    first = rows(mined_out)[0]
    wanted = dict(zip(first["negatives"], first["scores"], strict=True)) | {"d1": first["positive_score"]}
    assert row["scores"] == pytest.approx([wanted[id] for id in row["passages"]], abs=1e-4)


def test_keep(folder: Path, backbone: Path, negatives: str) -> None:
    assert score(folder, "--kind", "dense", "--teacher", str(backbone), "--negatives", negatives, "--keep", "2") == 0
    assert rows(folder / "scores.jsonl")[0]["passages"] == ["d1", "d2"]


def test_a_teacher_fused_with_bm25(folder: Path, backbone: Path, negatives: str) -> None:
    """Only d1 says "pumps" or "blood", so that BM25's z-scores over the four are √3 and thrice −1/√3."""
    options = ["--kind", "dense", "--teacher", str(backbone), "--negatives", negatives]
    assert score(folder, *options) == 0
    plain = rows(folder / "scores.jsonl")[0]["scores"]
    assert score(folder, *options, "--fuse", "bm25=0.5") == 0
    added = np.array(rows(folder / "scores.jsonl")[0]["scores"]) - np.array(plain)
    assert added == pytest.approx(0.5 * np.array([3**0.5, *[-(3**-0.5)] * 3]), abs=1e-4)
    assert score(folder, *options, "--fuse", "bm26=1") == 2


@pytest.fixture
def cross(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny backbone with a classification head, saved by transformers."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    path = tmp_path_factory.mktemp("cross")
    torch.manual_seed(0)
    shape = json.loads((backbone / "config.json").read_text()) | {"num_labels": 1}
    shape = {name: value for name, value in shape.items() if name not in ("model_type", "architectures")}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**shape))
    model.save_pretrained(path)
    (path / "tokenizer.json").write_bytes((backbone / "tokenizer.json").read_bytes())
    return path


def test_a_cross_encoder(folder: Path, cross: Path, negatives: str) -> None:
    """Scored in a batch, each passage has the score it has alone."""
    assert score(folder, "--teacher", str(cross), "--negatives", negatives) == 0
    (row,) = rows(folder / "scores.jsonl")
    assert len(row["scores"]) == 4 and len(set(row["scores"])) == 4
    assert score(folder, "--teacher", str(cross), "--negatives", negatives, "--keep", "2") == 0
    assert rows(folder / "scores.jsonl")[0]["scores"] == pytest.approx(row["scores"][:2], abs=1e-5)


def test_a_teacher_without_a_trained_head_is_refused(
    folder: Path, backbone: Path, negatives: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers would give it a random one."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    assert score(folder, "--teacher", str(backbone), "--negatives", negatives) == 4
    message = capsys.readouterr().err
    assert "not a trained cross-encoder, it lacks" in message and message.count("\n") == 1
    assert not (folder / "scores.jsonl").exists()


def test_a_teacher_with_three_outputs_is_refused(
    folder: Path, cross: Path, negatives: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import transformers

    labels = {"num_labels": 3, "id2label": {number: str(number) for number in range(3)}}
    shape = json.loads((cross / "config.json").read_text()) | labels
    transformers.BertForSequenceClassification(transformers.BertConfig(**shape)).save_pretrained(cross)
    assert score(folder, "--teacher", str(cross), "--negatives", negatives) == 4
    assert "has 3 outputs" in capsys.readouterr().err


def test_a_pickled_teacher_is_refused(
    folder: Path, negatives: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "pytorch_model.bin").write_bytes(b"")
    assert score(folder, "--teacher", str(pickled), "--negatives", negatives) == 4
    message = capsys.readouterr().err
    assert "pickled" in message and "convert it" in message and message.count("\n") == 1
    assert not (folder / "scores.jsonl").exists()


# ---- the command line ------------------------------------------------------------------------------------------------


def test_mine_by_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(folder / "out.jsonl")
    files = ["--passages", str(folder / "passages.jsonl"), "--pairs", str(folder / "pairs.jsonl")]
    assert run(["mine", "--model", "bm25", *files, "--out", out, "-k", "2"]) == 0
    assert "4 pairs" in capsys.readouterr().out
    assert len(rows(Path(out))) == 4


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        (["--model", "bm25"], 2, "name the data"),
        (["--model", "bm25", "--data", "none.toml"], 4, "none.toml: cannot be opened"),
        (["--model", "no-such-folder/x/y", "--files"], 4, "no-such-folder"),
        (["--model", "dense:./none", "--files"], 4, "no such folder"),
        (["--model", "bm25", "--files", "--out", "none/out.jsonl"], 2, "cannot be written"),
        (["--model", "dense:./none", "--files", "--device", "tpu"], 4, "unknown device 'tpu'"),
        (["--model", "bm25", "--files", "--margin", "nan"], 2, "--margin nan"),
    ],
)
def test_bad_calls(
    folder: Path, options: list[str], code: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--files" in options:
        at = options.index("--files")
        files = ["--passages", str(folder / "passages.jsonl"), "--pairs", str(folder / "pairs.jsonl")]
        options = [*options[:at], *files, *options[at + 1 :]]
    out = [] if "--out" in options else ["--out", str(folder / "out.jsonl")]
    assert run(["mine", *options, *out]) == code
    message = capsys.readouterr().err
    assert reason in message and message.count("\n") == 1
    assert not (folder / "out.jsonl").exists()


def test_nothing_half_written_when_a_teacher_fails(
    folder: Path, backbone: Path, negatives: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from citadel.train import distill

    def broken(self: Any, groups: Any) -> Any:
        raise InputError("the teacher fell ill")

    monkeypatch.setattr(distill.DenseTeacher, "score", broken)
    assert score(folder, "--kind", "dense", "--teacher", str(backbone), "--negatives", negatives) == 4
    assert sorted(path.name for path in folder.iterdir()) == ["negatives.jsonl", "pairs.jsonl", "passages.jsonl"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"query": "x", "positive": "d1"}, "no query, positive and negatives"),
        ({"query": "x", "positive": "d9", "negatives": []}, "'d9' is not in the collection"),
    ],
)
def test_bad_negatives(
    folder: Path, backbone: Path, write: Write, line: Any, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write("bad.jsonl", [line])
    assert score(folder, "--kind", "dense", "--teacher", str(backbone), "--negatives", file) == 4
    assert f"bad.jsonl:1: {reason}" in capsys.readouterr().err.replace("the passage id ", "").replace("there are ", "")


def test_train_names_the_wrong_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "run.toml"
    config.write_text("[data]\ngruop = 3\n")
    assert run(["train", str(config), "--out", str(tmp_path / "out")]) == 4
    message = capsys.readouterr().err
    assert "run.toml: unknown key 'data.gruop'" in message or "run.toml: model.backbone is missing" in message
    assert not (tmp_path / "out").exists()


def test_unknown_kind(folder: Path, backbone: Path, negatives: str) -> None:
    from citadel.train.distill import score_negatives

    passages = read_source(part(folder)).passages
    with pytest.raises(UsageError, match="unknown kind of teacher 'triple'"):
        score_negatives(str(backbone), passages, negatives, folder / "out.jsonl", kind="triple")
