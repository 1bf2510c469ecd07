"""Model files made to hang, exhaust memory or read other files are rejected before a session starts."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import citadel
from citadel.encode import encoder as encoding
from citadel.encode.encoder import Encoder
from citadel.encode.graph_check import MAX_NODES
from citadel.errors import InputError, ResourceError
from tests.corrupt import indexes
from tests.index.quick import Quick
from tests.support.models import ModelFolder

Change = Callable[[onnx.ModelProto], None]


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch, tiny_model: ModelFolder) -> list[Any]:
    """All sessions that were started; the export of the model, which starts one, comes first."""
    tiny_model()
    started: list[Any] = []
    real = onnxruntime.InferenceSession

    def start(*arguments: Any, **options: Any) -> Any:
        started.append(arguments)
        return real(*arguments, **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", start)
    return started


def copied(folder: Path, target: Path) -> Path:
    return Path(shutil.copytree(folder, target))


def value(name: str, array: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def node(kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Change:
    return lambda model: model.graph.node.append(helper.make_node(kind, inputs, outputs, **attributes))


def stored(name: str, array: Any) -> Change:
    return lambda model: model.graph.initializer.append(value(name, array))


def both(*changes: Change) -> Change:
    def change(model: onnx.ModelProto) -> None:
        for part in changes:
            part(model)

    return change


def body(*nodes: onnx.NodeProto) -> onnx.GraphProto:
    """A subgraph, as in a loop."""
    condition = helper.make_tensor_value_info("go", TensorProto.BOOL, [])
    count = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    again = helper.make_tensor_value_info("again", TensorProto.BOOL, [])
    return helper.make_graph(
        [helper.make_node("Identity", ["go"], ["again"]), *nodes], "body", [count, condition], [again]
    )


def outer(name: str, size: int) -> Change:
    """A column and a row whose sum has size² elements."""
    column, row = np.zeros((size, 1), np.float32), np.zeros((1, size), np.float32)
    return both(stored(f"{name}.column", column), stored(f"{name}.row", row))


def rotation(
    position: list[int] | None = None,
    at: str = "position",
    cosines: tuple[int, int] = (4, 4),
    sines: tuple[int, int] = (4, 4),
) -> Change:
    """Rotated positions of [1, 4, 8]."""
    tables = {"cosines": cosines, "sines": sines}
    return both(
        stored("x", np.zeros((1, 4, 8), np.float32)),
        stored("position", np.array(position or [0], np.int64)),
        *(stored(name, np.zeros(shape, np.float32)) for name, shape in tables.items()),
        node("RotaryEmbedding", ["x", at, *tables], ["s"], domain="com.microsoft"),
    )


def external(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/dev/zero")


def hollow(model: onnx.ModelProto) -> None:
    """A tensor that claims three gigabytes and stores nothing."""
    model.graph.initializer.append(
        TensorProto(name="hollow", data_type=TensorProto.FLOAT, dims=[750_000_000])
    )


def function(model: onnx.ModelProto) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    model.functions.append(
        helper.make_function("own", "f", ["x"], ["y"], nodes, [helper.make_opsetid("", 20)])
    )


def sparse(model: onnx.ModelProto) -> None:
    values = helper.make_tensor("dense", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("indices", TensorProto.INT64, [1], [0])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [1 << 40]))


def typed(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(
        TensorProto(name="typed", data_type=TensorProto.STRING, string_data=[b"x"], dims=[1])
    )


def many(model: onnx.ModelProto) -> None:
    one = helper.make_node("Identity", ["input_ids"], [""])
    model.graph.node.extend([one] * (MAX_NODES + 1))


LOOP = helper.make_node("Loop", ["", "condition"], [], body=body())
GIGABYTES = np.array([750_000_000], np.int64)  # of fp32: 3 GB
GRAPHS: dict[str, tuple[Change, str]] = {
    "a loop without end": (both(stored("condition", True), lambda m: m.graph.node.append(LOOP)), "body"),
    "a branch": (node("If", ["condition"], [], then_branch=body(), else_branch=body()), "then_branch|else_"),
    "a scan": (node("Scan", ["input_ids"], ["s"], body=body(), num_scan_inputs=1), "body"),
    "a loop without a body": (node("Loop", ["input_ids"], ["s"]), "the operator 'Loop'"),
    "a graph hidden in a known operator": (node("Relu", ["input_ids"], ["s"], hidden=body()), "hidden"),
    "an operator of another domain": (node("Own", ["input_ids"], ["s"], domain="evil"), "'evil.Own'"),
    "a known name in another domain": (node("Add", ["input_ids"] * 2, ["s"], domain="evil"), "'evil.Add'"),
    "Tile": (both(stored("n", GIGABYTES), node("Tile", ["input_ids", "n"], ["s"])), "'Tile'"),
    "Range": (node("Range", ["input_ids", "input_ids", "input_ids"], ["s"]), "'Range'"),
    "OneHot": (node("OneHot", ["input_ids", "input_ids", "input_ids"], ["s"]), "'OneHot'"),
    "Resize": (node("Resize", ["input_ids"], ["s"]), "'Resize'"),
    "RandomNormal": (node("RandomNormal", [], ["s"], shape=[750_000_000]), "'RandomNormal'"),
    "Constant": (node("Constant", [], ["s"], value=value("c", [1.0])), "'Constant'"),
    "3 GB of zeros": (
        both(stored("n", GIGABYTES), node("ConstantOfShape", ["n"], ["s"])), "750,014,342 elements",
    ),
    "3 GB of zeros by way of Identity": (
        both(stored("n", GIGABYTES), node("Identity", ["n"], ["m"]), node("ConstantOfShape", ["m"], ["s"])),
        "elements",
    ),
    "zeros of a size known only at run time": (node("ConstantOfShape", ["input_ids"], ["s"]), "unknown"),
    "a size from a cast": (
        both(stored("n", [-1]), node("Cast", ["n"], ["m"], to=2), node("ConstantOfShape", ["m"], ["s"])),
        "unknown",
    ),
    "a size that overflows": (
        both(
            stored("n", np.array([-(2**63)])), stored("one", np.array([1])), node("Sub", ["n", "one"], ["m"]),
            node("ConstantOfShape", ["m"], ["s"]),
        ),
        "unknown",
    ),
    "a size from two lengths": (
        both(
            node("Shape", ["input_ids"], ["l"], start=1, end=2), stored("n", np.array([700_000_000])),
            node("Add", ["l", "n"], ["m"]), node("ConstantOfShape", ["m"], ["s"]),
        ),
        "elements",
    ),
    "a text expanded": (
        both(stored("n", [90_000, 1, 512]), node("Expand", ["input_ids", "n"], ["s"])), "elements",
    ),
    "a text padded": (
        both(stored("n", [0, 0, 0, 1 << 30]), node("Pad", ["input_ids", "n"], ["s"])), "elements",
    ),
    "a pad of unknown size": (node("Pad", ["input_ids", "input_ids"], ["s"]), "unknown"),
    "an outer sum": (
        both(outer("a", 30_000), node("Add", ["a.column", "a.row"], ["s"])), "900,014,342 elements",
    ),
    "an outer product": (both(outer("a", 30_000), node("MatMul", ["a.column", "a.row"], ["s"])), "elements"),
    "an outer comparison": (
        both(outer("a", 30_000), node("Where", ["a.column", "a.row", "a.row"], ["s"])), "elements",
    ),
    "rows gathered again and again": (
        both(stored("rows", np.zeros((1, 50_000), np.float32)), stored("which", np.zeros(20_000, np.int64)),
             node("Gather", ["rows", "which"], ["s"])),
        "elements",
    ),
    "the same text many times over": (node("Concat", ["input_ids"] * 40_000, ["s"], axis=0), "elements"),
    "large arrays kept alive": (
        both(outer("a", 2000), *(node("Add", ["a.column", "a.row"], [f"s{i}"]) for i in range(200)),
             node("Concat", [f"s{i}" for i in range(200)], ["s"], axis=0)),
        "elements",
    ),
    "attention with a million heads": (
        both(stored("q", np.zeros((1, 512, 8), np.float32)),
             node("MultiHeadAttention", ["q", "q", "q"], ["s"], domain="com.microsoft", num_heads=1_000_000)),
        "elements",
    ),
    "attention without keys": (
        node(
            "MultiHeadAttention", ["input_ids", "", "input_ids"], ["s"], domain="com.microsoft", num_heads=1
        ),
        "which nothing gives",
    ),
    "topk of a billion": (
        both(stored("k", [1 << 30]), node("TopK", ["input_ids", "k"], ["s", "t"])), "elements",
    ),
    "a reshape of unknown shape": (node("Reshape", ["input_ids", "input_ids"], ["s"]), "unknown"),
    "ten dimensions": (
        both(stored("axes", list(range(8))), node("Unsqueeze", ["input_ids", "axes"], ["s"])), "dimensions",
    ),
    "an unknown input": (
        lambda m: m.graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, [1 << 40])),
        "input 'x'",
    ),
    "rotations from another position": (rotation(position=[1 << 40]), "begin at position 0"),
    "rotations of several positions": (rotation(position=[0, 0]), "begin at position 0"),
    "rotations from an input": (rotation(at="input_ids"), "begin at position 0"),
    "rotations of other widths": (rotation(sines=(4, 2)), "cosines and sines"),
    "rotations that divide no head": (rotation(cosines=(4, 5), sines=(4, 5)), "cosines and sines"),
    "rotations of nothing": (rotation(cosines=(4, 0), sines=(4, 0)), "cosines and sines"),
    "attention with seven inputs": (
        both(
            stored("a", np.zeros((1, 4, 8), np.float32)),
            node(
                "MultiHeadAttention", ["a"] * 7, ["s"], domain="com.microsoft", num_heads=1,
            ),
        ),
        "MultiHeadAttention has inputs",
    ),
    "a node without inputs": (node("Relu", [], ["s"]), "which nothing gives"),
    "an undefined input": (node("Relu", ["nobody"], ["s"]), "'nobody'"),
    "weights in another file": (external, "tensor"),
    "a tensor without its bytes": (hollow, "'hollow'"),
    "a tensor of strings": (typed, "'typed'"),
    "a function of its own": (function, "the model has a part of kind 25"),
    "a sparse initialiser": (sparse, "the graph has a part of kind 15"),
    "too many nodes": (many, "nodes, at most"),
}  # fmt: skip


@pytest.mark.parametrize("case", GRAPHS)
def test_hostile_graph_is_rejected(
    case: str, tiny_model: ModelFolder, tmp_path: Path, sessions: list[Any]
) -> None:
    change, message = GRAPHS[case]
    folder = copied(tiny_model(), tmp_path / "model")
    model = onnx.load(folder / "model.onnx")
    change(model)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match=f"model.onnx: the graph is refused: .*({message})"):
        Encoder(folder)
    assert sessions == []


@pytest.mark.parametrize("router", ["dynamic", "static", "all_to_all", "sparse", "none"])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_exported_graphs_are_accepted(
    router: str, precision: str, tiny_model: ModelFolder, sessions: list[Any]
) -> None:
    folder = tiny_model(router, precision)
    sessions.clear()  # the export may have started one
    Encoder(folder)
    assert len(sessions) == 1


# Tokenizers


def replace(pattern: dict[str, str], content: str = " ") -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(*parts: Any) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(parts)}


def split(pattern: dict[str, str]) -> dict[str, Any]:
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


TEXT = {"Sequence": {"id": "A", "type_id": 0}}
TOKENIZERS: dict[str, tuple[dict[str, Any], str]] = {
    "a regular expression": ({"normalizer": replace({"Regex": "(a+)+$"})}, "not plain text"),
    "one in a sequence": (
        {"normalizer": sequence({"type": "NFC"}, replace({"Regex": "(a|a)*b"}))},
        "not plain text",
    ),
    "one that splits": ({"pre_tokenizer": split({"Regex": "(x+x+)+y"})}, "not plain text"),
    "one in the decoder": ({"decoder": replace({"Regex": "a"})}, "not plain text"),
    "an empty pattern": ({"normalizer": replace({"String": ""}, "x")}, "not plain text"),
    "a replacement of a megabyte": (
        {"normalizer": replace({"String": "a"}, "a" * (1 << 20))},
        "times as long",
    ),
    "replacements of replacements": (
        {"normalizer": sequence(*[replace({"String": "a"}, "aa")] * 5)},
        "times as long",
    ),
    "an unknown normaliser": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
        "compiled normalizer is damaged",
    ),
    "a prefix": ({"normalizer": {"type": "Prepend", "prepend": "x" * 1000}}, "'Prepend'"),
    "a sequence in a sequence": (
        {"normalizer": sequence(sequence(replace({"Regex": "a"})))},
        "a sequence within a sequence",
    ),
    "a hundred normalisers": ({"normalizer": sequence(*[{"type": "NFKD"}] * 100)}, "more than 16 parts"),
    "a template that repeats": (
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [TEXT] * 9,
                "pair": [],
                "special_tokens": {},
            }
        },
        "repeats the text",
    ),
    "words of unlimited length": (
        {"model": {"type": "WordPiece", "max_input_chars_per_word": 10**9}},
        "more than 1000 letters",
    ),
    "an unknown part": ({"surprise": {}}, "'surprise'"),
    "no model": ({"model": None}, "it has no model"),
}


@pytest.mark.parametrize("case", TOKENIZERS)
def test_hostile_tokenizer_is_rejected(
    case: str, tiny_model: ModelFolder, tmp_path: Path, sessions: list[Any]
) -> None:
    changes, message = TOKENIZERS[case]
    folder = copied(tiny_model(), tmp_path / "model")
    data = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(data | changes))
    with pytest.raises(InputError, match=f"tokenizer.json: the tokenizer is refused: .*({message})"):
        Encoder(folder)
    assert sessions == []


def test_deeply_nested_tokenizer_is_rejected(
    tiny_model: ModelFolder, tmp_path: Path, sessions: list[Any]
) -> None:
    folder = copied(tiny_model(), tmp_path / "model")
    (folder / "tokenizer.json").write_text("[" * 200_000)
    with pytest.raises(InputError, match="nested too deeply"):
        Encoder(folder)
    assert sessions == []


# Files

FILES = ("config.json", "tokenizer.json", "model.onnx")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["link to /dev/zero", "pipe", "folder", "10 GB"])
def test_irregular_or_huge_files_are_rejected(
    name: str, kind: str, tiny_model: ModelFolder, tmp_path: Path, sessions: list[Any]
) -> None:
    folder = copied(tiny_model(), tmp_path / "model")
    path = folder / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "10 GB":
        path.touch()
        os.truncate(path, 10 << 30)  # sparse: takes no disk space
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(InputError, match=r"not a regular file|cannot be read|at most .* are read") as caught:
        Encoder(folder)
    assert name in str(caught.value) and sessions == []


def test_links_to_regular_files_are_followed(tiny_model: ModelFolder, tmp_path: Path) -> None:
    """As in the cache of a model hub."""
    folder = tmp_path / "linked"
    folder.mkdir()
    for name in FILES:
        (folder / name).symlink_to(tiny_model() / name)
    assert Encoder(folder).fingerprint == Encoder(tiny_model()).fingerprint


CONFIGS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no [CLS]": (lambda config: config | {"cls_id": -1}, "special tokens"),
    "[SEP] beyond the vocabulary": (lambda config: config | {"sep_id": 200}, "special tokens"),
    "a negative [MASK]": (lambda config: config | {"mask_id": -5}, "special tokens"),
    "a negative [PAD]": (lambda config: config | {"pad_id": -1}, "special tokens"),
    "no layers": (lambda config: config | {"backbone": config["backbone"] | {"layers": 0}}, "not from 1 to"),
    "a huge table": (
        lambda config: config | {"backbone": config["backbone"] | {"positions": 1 << 40}}, "not from 1 to",
    ),
    "a huge hidden size": (
        lambda config: config | {"backbone": config["backbone"] | {"hidden": 1 << 30}}, "not from 1 to",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIGS)
def test_hostile_config_is_rejected(
    case: str, tiny_model: ModelFolder, tmp_path: Path, sessions: list[Any]
) -> None:
    change, message = CONFIGS[case]
    folder = copied(tiny_model(), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(change(config)))
    with pytest.raises(InputError, match=f"config.json: .*{message}"):
        Encoder(folder)
    assert sessions == []


def test_deeply_nested_config_is_rejected(
    tiny_model: ModelFolder, tmp_path: Path, sessions: list[Any]
) -> None:
    folder = copied(tiny_model(), tmp_path / "model")
    (folder / "config.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    with pytest.raises(InputError, match=r"config.json: cannot be read as JSON \(nested too deeply\)"):
        Encoder(folder)
    assert sessions == []


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("std::bad_alloc"), RuntimeError("bad allocation")]
)
def test_out_of_memory_is_a_resource_error(
    error: Exception, tiny_model: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(onnxruntime, "InferenceSession", full)
    with pytest.raises(ResourceError, match="out of memory while the model is loaded") as caught:
        Encoder(tiny_model())
    assert caught.value.exit_code == 6


# Models of an index


@pytest.mark.parametrize("form", ["inside the index", "an absolute path", "a path upwards", "a pipe"])
def test_index_cannot_choose_the_path_of_its_model(
    form: str, tiny_model: ModelFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sessions: list[Any]
) -> None:
    """Not even a model with the right fingerprint is read from a path in an index."""
    with citadel.Index.create(Quick(tmp_path / "index"), model=tiny_model()) as index:
        index.add([{"id": "d1", "text": "rome"}])
        index.commit()
    sessions.clear()
    copied(tiny_model(), tmp_path / "index" / "model")
    os.mkfifo(tmp_path / "pipe")
    forms = {
        "inside the index": "model",
        "an absolute path": str(tmp_path / "index" / "model"),
        "a path upwards": "../index/model",
        "a pipe": str(tmp_path / "pipe"),
    }
    data = indexes.manifest(tmp_path / "index")
    assert data["settings"]["model"] == "model"  # the folder's name, not its path
    data["settings"]["model"] = forms[form]
    indexes.write_manifest(tmp_path / "index", data)
    monkeypatch.chdir(tmp_path / "index")
    read: list[Any] = []
    monkeypatch.setattr(encoding, "read_model", read.append)
    with pytest.raises(InputError, match="which is not installed: name its folder with --model DIR"):
        citadel.Index.open(tmp_path / "index").searcher().search("rome")
    assert sessions == [] and read == []
