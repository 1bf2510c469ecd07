"""Hostile model folders are refused in one sentence; no code of theirs runs and nothing is written."""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from citadel.errors import InputError
from citadel.model.importer.convert import import_model
from tests.support.foreign_files import write_bi_encoder, write_colbert

EVIL = "open('evil', 'w').close()\nclass Module: pass\n"


def json_in(name: str, **values: Any) -> Any:
    def change(folder: Path) -> None:
        path = folder / name
        stored = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**stored, **values}))

    return change


def text_in(name: str, text: Any) -> Any:
    def change(folder: Path) -> None:
        path = folder / name
        path.unlink(missing_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)

    return change


def module(**values: Any) -> Any:
    def change(folder: Path) -> None:
        modules = json.loads((folder / "modules.json").read_text())
        modules[1] |= values
        (folder / "modules.json").write_text(json.dumps(modules))

    return change


def tensors(**changed: Any) -> Any:
    """Replace tensors, whose names have __ for a dot."""

    def change(folder: Path) -> None:
        file = folder / "model.safetensors"
        stored = load_file(file)
        for name, make in changed.items():
            name = name.replace("__", ".")
            stored[name] = make(stored[name])
        save_file(stored, file, metadata={"format": "pt"})

    return change


def header(change_header: Any) -> Any:
    """Change the header of the weights, which says where each tensor lies."""

    def change(folder: Path) -> None:
        file = folder / "model.safetensors"
        data = file.read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        stored = json.loads(data[8 : 8 + size])
        change_header(stored)
        text = json.dumps(stored).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])

    return change


def first(stored: dict[str, Any], **values: Any) -> None:
    name = next(name for name in stored if name != "__metadata__")
    stored[name] |= values


def piped(name: str) -> Any:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


def linked(name: str, target: str) -> Any:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(target)

    return change


WORD, KEY = "embeddings__word_embeddings__weight", "encoder__layer__0__attention__self__key__weight"
CONFIG, POOLING, SETTINGS = "config.json", "1_Pooling/config.json", "config_sentence_transformers.json"
OWN, TOKENIZER, WEIGHTS = "sentence_bert_config.json", "tokenizer.json", "model.safetensors"
HUGE = 1 << 62
CASES: dict[str, Any] = {
    # code
    "custom module": module(type="evil.Module"),
    "custom module that looks like ours": module(type="sentence_transformers_evil.Module"),
    "module of the standard library": module(type="os.system"),
    "custom code of the model": json_in(CONFIG, auto_map={"AutoModel": "evil.Module"}),
    "unknown architecture with code": json_in(CONFIG, model_type="evil"),
    "pickled weights": lambda f: (f / WEIGHTS).rename(f / "pytorch_model.bin"),
    "pickled weights of another name": lambda f: (f / WEIGHTS).rename(f / "model.ckpt"),
    "activation to import": lambda f: dense(f, activation_function="evil.Module"),
    "activation of the system": lambda f: dense(f, activation_function="os.system"),
    # paths
    "module above the folder": module(path="../../etc"),
    "module at the root": module(path="/etc"),
    "module two folders deep": module(path="a/b"),
    "module named ..": module(path=".."),
    "module named .": module(path="."),
    "module with NUL": module(path="a\0b"),
    "module with a long path": module(path="a" * 5000),
    "weights above the folder": lambda f: index_of(f, "../outside.safetensors"),
    "weights at the root": lambda f: index_of(f, "/etc/passwd"),
    "modules as a pipe": piped("modules.json"),
    "config as a pipe": piped(CONFIG),
    "tokenizer as a pipe": piped(TOKENIZER),
    "pooling as a pipe": piped(POOLING),
    "modules from a device": linked("modules.json", "/dev/zero"),
    "tokenizer from a device": linked(TOKENIZER, "/dev/zero"),
    "config from a device": linked(CONFIG, "/dev/zero"),
    "weights from a device": linked(WEIGHTS, "/dev/zero"),
    "tokenizer in a loop": linked(TOKENIZER, TOKENIZER),
    "tokenizer of the system": linked(TOKENIZER, "/etc/passwd"),
    # JSON
    **{
        f"{name}: {what}": text_in(name, text)
        for name in ("modules.json", CONFIG, POOLING)
        for what, text in {
            "deep": "[" * 100_000, "cut": "{", "binary": b"\xff\xfe\0", "a number": "7", "empty": "",
        }.items()
    },
    "modules as text": text_in("modules.json", '["a", "b"]'),
    "modules without types": text_in("modules.json", "[{}, {}]"),
    "types of another kind": module(type=["a"]),
    "4 MB of modules": text_in("modules.json", "[" + " " * (4 << 20) + "]"),
    "prompts of another kind": json_in(SETTINGS, prompts=[1, 2]),
    "prompt of another kind": json_in(SETTINGS, prompts={"query": 7}),
    "similarity of another kind": json_in(SETTINGS, similarity_fn_name={"a": 1}),
    "pooling of another kind": json_in(POOLING, pooling_mode=[["mean"]]),
    "length of another kind": json_in(OWN, max_seq_length="512"),
    "negative length": json_in(OWN, max_seq_length=-5),
    "tiny length": json_in(OWN, max_seq_length=1),
    "length that is no number": text_in(OWN, '{"max_seq_length": NaN}'),
    # sizes
    "huge vocabulary": json_in(CONFIG, vocab_size=HUGE),
    "huge width": json_in(CONFIG, hidden_size=HUGE),
    "huge number of layers": json_in(CONFIG, num_hidden_layers=HUGE),
    "huge number of heads": json_in(CONFIG, num_attention_heads=HUGE),
    "no heads": json_in(CONFIG, num_attention_heads=0),
    "huge positions": json_in(CONFIG, max_position_embeddings=HUGE),
    "negative positions": json_in(CONFIG, max_position_embeddings=-1),
    "huge inner width": json_in(CONFIG, intermediate_size=HUGE),
    "width of another kind": json_in(CONFIG, hidden_size="384"),
    "width as a fraction": json_in(CONFIG, hidden_size=64.5),
    "activation of another kind": json_in(CONFIG, hidden_act=["gelu"]),
    "a tensor of the wrong shape": tensors(**{KEY: lambda part: part[:, :-1]}),
    "a tensor of one dimension": tensors(**{WORD: lambda part: part.reshape(-1)}),
    "a tensor of NaN": tensors(**{KEY: lambda part: part * np.float32("nan")}),
    "a tensor of infinity": tensors(**{WORD: lambda part: part + np.float32("inf")}),
    "an empty tensor": tensors(**{WORD: lambda part: part[:0]}),
    "a projection of millions": lambda f: dense(f, out=40_000),
    # safetensors
    "a header of 2⁶³ bytes": text_in(WEIGHTS, struct.pack("<Q", 1 << 63) + b"{}"),
    "a header beyond the file": text_in(WEIGHTS, struct.pack("<Q", 1 << 20) + b"{}"),
    "no header": text_in(WEIGHTS, b""),
    "a header of text": text_in(WEIGHTS, struct.pack("<Q", 4) + b"evil"),
    "a deep header": text_in(WEIGHTS, struct.pack("<Q", 100_000) + b"[" * 100_000),
    "offsets beyond the file": header(lambda h: first(h, data_offsets=[0, HUGE])),
    "offsets backwards": header(lambda h: first(h, data_offsets=[64, 0])),
    "negative offsets": header(lambda h: first(h, data_offsets=[-8, 8])),
    "offsets that overlap": header(lambda h: [part.update(data_offsets=[0, 64]) for part in h.values()]),
    "a shape that overflows": header(lambda h: first(h, shape=[HUGE, HUGE])),
    "a huge shape": header(lambda h: first(h, shape=[1 << 20, 1 << 20])),
    "an unknown type": header(lambda h: first(h, dtype="EVIL")),
    # tokenizers
    "a regular expression": json_in(
        TOKENIZER, normalizer={"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}
    ),
    "a growing text": json_in(
        TOKENIZER, normalizer={"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
    ),
    "an unknown normalizer": json_in(TOKENIZER, normalizer={"type": "Evil"}),
    "an unknown part": json_in(TOKENIZER, evil={"type": "Evil"}),
    "a tokenizer without a model": json_in(TOKENIZER, model=None),
    "ids beyond the embeddings": json_in(
        TOKENIZER, model={"type": "WordLevel", "vocab": {"heart": 1 << 31, "[UNK]": 0}, "unk_token": "[UNK]"}
    ),
    "a tokenizer of text": text_in(TOKENIZER, "evil"),
    "a deep tokenizer": text_in(TOKENIZER, "[" * 100_000),
}  # fmt: skip


def dense(folder: Path, out: int = 8, activation_function: str = "torch.nn.modules.linear.Identity") -> None:
    """Add a Dense module."""
    modules = json.loads((folder / "modules.json").read_text())
    added = {"idx": 3, "path": "3_Dense", "type": "sentence_transformers.models.Dense"}
    (folder / "modules.json").write_text(json.dumps([*modules[:2], added]))
    (folder / "3_Dense").mkdir()
    json_in("config.json", activation_function=activation_function)(folder / "3_Dense")
    save_file({"linear.weight": np.ones((out, 64), np.float32)}, folder / "3_Dense" / WEIGHTS)


def index_of(folder: Path, name: str) -> None:
    """Weights in parts, one of them elsewhere."""
    (folder / WEIGHTS).rename(folder.parent / "outside.safetensors")
    index = {"weight_map": {"embeddings.word_embeddings.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("case", CASES)
def test_hostile_folder_is_refused(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_bi_encoder(tmp_path / "model")
    for name in ("evil.py", "modeling_evil.py", "1_Pooling/evil.py"):
        (folder / name).write_text(EVIL)
    CASES[case](folder)
    monkeypatch.chdir(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError) as caught:
        import_model(str(folder), tmp_path / "ours", "fp32")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1200
    assert not (tmp_path / "ours").exists()
    assert not (folder / "evil").exists() and "evil" not in sys.modules
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB


METADATA: dict[str, Any] = {
    "negative length": {"query_maxlen": -1}, "huge length": {"query_maxlen": HUGE},
    "length of another kind": {"doc_maxlen": {"a": 1}}, "marker of another kind": {"query_token_id": 7},
    "marker that is long": {"query_token_id": "[unused0]" * 100_000},
}  # fmt: skip


@pytest.mark.parametrize("case", METADATA)
def test_hostile_metadata_is_refused(case: str, tmp_path: Path) -> None:
    folder = write_colbert(tmp_path / "model")
    json_in("artifact.metadata", **METADATA[case])(folder)
    with pytest.raises(InputError) as caught:
        import_model(str(folder), tmp_path / "ours", "fp32")
    assert "\n" not in str(caught.value) and not (tmp_path / "ours").exists()


def test_there_are_more_than_a_hundred_cases() -> None:
    """With those of test_dpr_scale.py, test_bi_encoder.py, test_colbert.py and test_splade.py some 200."""
    assert len(CASES) + len(METADATA) > 90
