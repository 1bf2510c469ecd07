"""Mining and scoring on five passages with BM25, a random encoder and every router."""

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
    """Ranks the passages with fixed scores."""

    def rank(self, query: Any, positive: Any, k: int) -> Iterator[RankedPassages]:
        for _ in query:
            yield RankedPassages(np.array([4, 1, 0, 2, 3]), np.array([9, 8, 7, 6, 5], np.float32), 7.0)


def mined(folder: Path, k: int, margin: float) -> dict[str, Any]:
    """Mine "what pumps blood", whose positive d1 scores 7 and has the copy d5."""
    source = read_source(part(folder))
    lines = list(mined_lines(source, Fixed(), source.query[:1], source.positive[:1], k, margin))
    result: dict[str, Any] = json.loads(lines[0])
    return result


def test_known_positives_and_their_copies_are_not_negatives(folder: Path) -> None:
    line = mined(folder, 2, -math.inf)
    assert line == {
        "query": "what pumps blood",
        "positive": "d1",
        "negatives": ["d2", "d3"],
        "scores": [8, 6],
        "positive_score": 7,
    }


def test_margin_drops_high_scoring_passages(folder: Path) -> None:
    line = mined(folder, 9, 0.5)  # drops scores above 6.5
    assert (line["negatives"], line["scores"], line["dropped"]) == (["d3", "d4"], [6, 5], ["d2"])
    assert mined(folder, 9, 1.5)["negatives"] == ["d4"]


def test_mine_with_bm25(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CITADEL_MODEL", "no-such-model")  # the default model has no part in it
    out = folder / "negatives.jsonl"
    assert mine(part(folder), "bm25", out, k=3) == 4
    result = rows(out)
    assert [(row["query"], row["positive"]) for row in result] == [(query, id) for query, id, _ in PAIRS]
    assert result[0]["negatives"] == []  # only d1 and its copy d5 contain "pumps" or "blood"
    assert result[0]["positive_score"] > 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "negatives.jsonl",
        "pairs.jsonl",
        "passages.jsonl",
    ]


def test_mine_with_bm25_a_query_without_words(folder: Path) -> None:
    with open(folder / "pairs.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"query": "?!", "positive": "d1"}) + "\n")
    out = folder / "negatives.jsonl"
    assert mine(part(folder), "bm25", out, k=3) == 5
    assert rows(out)[-1] == {
        "query": "?!",
        "positive": "d1",
        "negatives": [],
        "scores": [],
        "positive_score": None,
    }


def test_mine_with_a_sentence_encoder(folder: Path, backbone: Path) -> None:
    """Negatives are ordered by cosine."""
    out = folder / "negatives.jsonl"
    mine(part(folder), f"dense:{backbone}", out, k=3, device="cpu")
    for row in rows(out):
        assert row["scores"] == sorted(row["scores"], reverse=True)
        assert all(-1.001 <= score <= 1.001 for score in [*row["scores"], row["positive_score"]])
        assert row["positive"] not in row["negatives"] and len(row["negatives"]) == 3
    assert "d5" not in rows(out)[0]["negatives"]


@pytest.mark.parametrize("router", ["none", "static", "dynamic", "sparse", "all_to_all"])
def test_mined_scores_match_the_training_score(
    router: str, folder: Path, backbone: Path, tmp_path: Path
) -> None:
    """The torch encoder and exact search agree with the training score for every router."""
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
    for number, row in enumerate(rows(out)):
        listed = dict(zip(row["negatives"], row["scores"], strict=True)) | {
            row["positive"]: row["positive_score"]
        }
        expected = dict(zip(source.passages.ids.texts, scores[number].tolist(), strict=True))
        for id, value in listed.items():
            if value is not None:
                assert value == pytest.approx(expected[id], rel=1e-3, abs=1e-4)
        assert row["scores"] == sorted(row["scores"], reverse=True)
    assert TorchEncoder(loaded, mark).encode([]).size == 0


# Teachers


@pytest.fixture
def negatives(write: Write) -> str:
    lines = [{"query": query, "positive": id, "negatives": ["d2", "d3", "d4"]} for query, id, _ in PAIRS[:1]]
    return write("negatives.jsonl", lines)


def score(folder: Path, *options: str) -> int:
    passages, out = str(folder / "passages.jsonl"), str(folder / "scores.jsonl")
    return run(["score", "--passages", passages, "--out", out, "--device", "cpu", *options])


def test_dense_teacher_scores_match_mining(folder: Path, backbone: Path, negatives: str) -> None:
    """The teacher's scores are the cosines of mining with the same encoder."""
    mined_out = folder / "mined.jsonl"
    mine(part(folder), f"dense:{backbone}", mined_out, k=5, device="cpu")
    assert score(folder, "--kind", "dense", "--teacher", str(backbone), "--negatives", negatives) == 0
    (row,) = rows(folder / "scores.jsonl")
    assert row["passages"] == ["d1", "d2", "d3", "d4"] and row["positive"] == "d1"
    first = rows(mined_out)[0]
    expected = dict(zip(first["negatives"], first["scores"], strict=True)) | {"d1": first["positive_score"]}
    assert row["scores"] == pytest.approx([expected[id] for id in row["passages"]], abs=1e-4)


def test_keep_limits_passages_per_query(folder: Path, backbone: Path, negatives: str) -> None:
    assert (
        score(folder, "--kind", "dense", "--teacher", str(backbone), "--negatives", negatives, "--keep", "2")
        == 0
    )
    assert rows(folder / "scores.jsonl")[0]["passages"] == ["d1", "d2"]


def test_teacher_fused_with_bm25(folder: Path, backbone: Path, negatives: str) -> None:
    """Only d1 has "pumps" or "blood", so the z-scores of BM25 are √3 and three times −1/√3."""
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


def test_cross_encoder_scores_do_not_depend_on_the_batch(folder: Path, cross: Path, negatives: str) -> None:
    """A passage has the same score in batches of different sizes."""
    assert score(folder, "--teacher", str(cross), "--negatives", negatives) == 0
    (row,) = rows(folder / "scores.jsonl")
    assert len(row["scores"]) == 4 and len(set(row["scores"])) == 4
    assert score(folder, "--teacher", str(cross), "--negatives", negatives, "--keep", "2") == 0
    assert rows(folder / "scores.jsonl")[0]["scores"] == pytest.approx(row["scores"][:2], abs=1e-5)


def test_teacher_without_a_trained_head_is_rejected(
    folder: Path, backbone: Path, negatives: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers would add a random head."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    assert score(folder, "--teacher", str(backbone), "--negatives", negatives) == 4
    message = capsys.readouterr().err
    assert "not a trained cross-encoder" in message and message.count("\n") == 1
    assert not (folder / "scores.jsonl").exists()


def test_teacher_with_three_outputs_is_rejected(
    folder: Path, cross: Path, negatives: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import transformers

    labels = {"num_labels": 3, "id2label": {number: str(number) for number in range(3)}}
    shape = json.loads((cross / "config.json").read_text()) | labels
    transformers.BertForSequenceClassification(transformers.BertConfig(**shape)).save_pretrained(cross)
    assert score(folder, "--teacher", str(cross), "--negatives", negatives) == 4
    assert "has 3 outputs" in capsys.readouterr().err


def test_pickled_teacher_is_rejected(
    folder: Path, negatives: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "pytorch_model.bin").write_bytes(b"")
    assert score(folder, "--teacher", str(pickled), "--negatives", negatives) == 4
    message = capsys.readouterr().err
    assert "pickled" in message and "convert it" in message and message.count("\n") == 1
    assert not (folder / "scores.jsonl").exists()


# Command line


def test_mine_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
def test_mine_rejects_bad_arguments(
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


def test_failing_teacher_leaves_no_files(
    folder: Path, backbone: Path, negatives: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from citadel.train import distill

    def broken(self: Any, groups: Any) -> Any:
        raise InputError("the teacher failed")

    monkeypatch.setattr(distill.DenseTeacher, "score", broken)
    assert score(folder, "--kind", "dense", "--teacher", str(backbone), "--negatives", negatives) == 4
    assert sorted(path.name for path in folder.iterdir()) == [
        "negatives.jsonl",
        "pairs.jsonl",
        "passages.jsonl",
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"query": "x", "positive": "d1"}, "query, positive or negatives is missing"),
        ({"query": "x", "positive": "d9", "negatives": []}, "'d9' is not in the collection"),
    ],
)
def test_bad_line_of_negatives(
    folder: Path, backbone: Path, write: Write, line: Any, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write("bad.jsonl", [line])
    assert score(folder, "--kind", "dense", "--teacher", str(backbone), "--negatives", file) == 4
    assert f"bad.jsonl:1: {reason}" in capsys.readouterr().err.replace("the passage id ", "")


def test_train_names_the_unknown_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "run.toml"
    config.write_text("[data]\ngruop = 3\n")
    assert run(["train", str(config), "--out", str(tmp_path / "out")]) == 4
    message = capsys.readouterr().err
    assert "run.toml: unknown key 'data.gruop'" in message or "run.toml: model.backbone is missing" in message
    assert not (tmp_path / "out").exists()


def test_unknown_kind_of_teacher(folder: Path, backbone: Path, negatives: str) -> None:
    from citadel.train.distill import score_negatives

    passages = read_source(part(folder)).passages
    with pytest.raises(UsageError, match="unknown kind of teacher 'triple'"):
        score_negatives(str(backbone), passages, negatives, folder / "out.jsonl", kind="triple")
