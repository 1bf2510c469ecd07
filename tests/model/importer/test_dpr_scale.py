"""CITADEL checkpoints of dpr-scale: keys, weights and vectors of its model, and no foreign code."""

from __future__ import annotations

import struct
import sys
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertForMaskedLM

import citadel
from citadel.encode.config import load_config
from citadel.encode.encoder import Encoder
from citadel.errors import InputError
from citadel.model.importer.convert import import_model
from tests.support.foreign import TEXTS, foreign_backbone

DIMENSION, SEMANTIC = 8, 16


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return foreign_backbone(tmp_path_factory.mktemp("foreign") / "backbone", head=True)


@pytest.fixture
def hydra(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes objects that are pickled as those of omegaconf; the modules are gone when the test reads them."""
    made: dict[str, Any] = {}
    monkeypatch.setitem(sys.modules, "omegaconf", types.ModuleType("omegaconf"))
    for module, name in (("omegaconf.dictconfig", "DictConfig"), ("omegaconf.nodes", "AnyNode")):
        fake = types.ModuleType(module)
        made[name] = type(name, (), {"__module__": module})
        setattr(fake, name, made[name])
        monkeypatch.setitem(sys.modules, module, fake)

    def node(value: Any) -> Any:
        one = made["AnyNode"]()
        one.__dict__.update(_val=value, _parent=None)
        return one

    def config(**values: Any) -> Any:
        one = made["DictConfig"]()
        one.__dict__.update(_content={name: node(value) for name, value in values.items()})
        return one

    yield types.SimpleNamespace(node=node, config=config, leave=monkeypatch.undo)
    monkeypatch.undo()


def state_dict(backbone: Path, shared: bool = True) -> dict[str, torch.Tensor]:
    model = BertForMaskedLM.from_pretrained(backbone)
    torch.manual_seed(4)
    encoder = {f"transformer.{name}": part for name, part in model.state_dict().items()}
    for name, width in (("tok_project", DIMENSION), ("cls_project", SEMANTIC)):
        encoder |= {f"{name}.0.weight": torch.randn(width, 32) / 6, f"{name}.0.bias": torch.randn(width)}
    other = encoder if shared else {name: part + 1 for name, part in encoder.items()}
    return {
        f"{side}_encoder.{name}": part
        for side, parts in (("query", encoder), ("context", other))
        for name, part in parts.items()
    }


def checkpoint(folder: Path, state: Any, **settings: Any) -> Path:
    path = folder / "checkpoint_best.ckpt"
    given = {"epoch": 3, "state_dict": state, "hyper_parameters": settings, "callbacks": {}}
    torch.save(given, path)
    return path


def expected(backbone: Path, state: dict[str, torch.Tensor], ids: np.ndarray, keys: int) -> Any:
    """Best keys, weights and vectors of the tokens after [CLS], and the projection of [CLS]."""
    model = BertForMaskedLM.from_pretrained(backbone, output_hidden_states=True).eval()
    with torch.no_grad():
        outputs = model(input_ids=torch.from_numpy(ids)[None])
        hidden = outputs.hidden_states[-1][0]
        weights, best = torch.log(1 + torch.relu(outputs.logits[0, 1:])).topk(keys, dim=-1)
        parts = [state[f"query_encoder.{name}.0.{kind}"] for name in ("tok_project", "cls_project")
                 for kind in ("weight", "bias")]  # fmt: skip
        vectors = torch.nn.functional.linear(hidden[1:], *parts[:2])
        return best, weights, vectors, torch.nn.functional.linear(hidden[0], *parts[2:])


def test_keys_weights_and_vectors_are_those_of_the_authors(
    backbone: Path, tmp_path: Path, hydra: Any
) -> None:
    state = state_dict(backbone)
    settings = {
        "query_topk": 2, "context_topk": 3, "add_cls": True,
        "model": hydra.config(model_path="bert-base-uncased", tok_projection_dim=DIMENSION),
        "tau": hydra.node(1.0),
    }  # fmt: skip
    path = checkpoint(tmp_path, state, **settings)
    hydra.leave()
    [folder] = import_model(str(path), tmp_path / "ours", "fp32", backbone=str(backbone))
    config = load_config(folder)
    assert (config.query_keys, config.document_keys, config.tau, config.name) == (
        2,
        3,
        0.9,
        "checkpoint_best",
    )
    encoder = Encoder(folder, threads=1, tau=0.0)
    for texts, count, encoded in (
        (encoder.tokenizer.queries(TEXTS), 2, encoder.encode_queries(TEXTS)),
        (encoder.tokenizer.documents(TEXTS), 3, encoder.encode_documents(TEXTS)),
    ):
        for text, routed in zip(texts, encoded, strict=True):
            keys, weights, vectors, semantic = expected(backbone, state, text.ids, count)
            live = weights.numpy() > 0
            assert routed.vectors is not None and routed.semantic is not None
            np.testing.assert_array_equal(routed.keys, keys.numpy()[live])
            np.testing.assert_allclose(routed.weights, weights.numpy()[live], atol=1e-4)
            rows = vectors.numpy()[np.nonzero(live)[0]]
            np.testing.assert_allclose(routed.vectors, rows, atol=1e-4)
            np.testing.assert_allclose(routed.semantic, semantic.numpy(), atol=1e-4)
    card = (folder / "README.md").read_text()
    assert "CC-BY-NC" in card and "checkpoint_best.ckpt" in card


def test_imported_checkpoint_is_indexed_and_searched(backbone: Path, tmp_path: Path) -> None:
    path = checkpoint(tmp_path, state_dict(backbone))
    [folder] = import_model(str(path), tmp_path / "ours", backbone=str(backbone))
    with citadel.Index.create(tmp_path / "idx", model=str(folder)) as index:
        index.add([{"id": str(number), "text": text} for number, text in enumerate(TEXTS)])
        index.commit()
        assert len(index.search("einstein and relativity", k=3)) == 3


def test_two_encoders_are_refused(backbone: Path, tmp_path: Path) -> None:
    path = checkpoint(tmp_path, state_dict(backbone, shared=False))
    with pytest.raises(InputError, match="two encoders"):
        import_model(str(path), tmp_path / "ours", backbone=str(backbone))


# Hostile pickles, written opcode by opcode. Each would create the file `evil` if its code ran.

TORCH = b"ctorch._utils\n_rebuild_tensor_v2\n"


def archive(folder: Path, contents: bytes, name: Any = "archive/data.pkl", **more: Any) -> Path:
    path = folder / "hostile.ckpt"
    with zipfile.ZipFile(path, "w", more.pop("compression", zipfile.ZIP_STORED)) as file:
        file.writestr(name, contents)
        file.writestr("archive/version", "3\n")
        file.writestr("archive/byteorder", "little")
        for entry, data in more.items():
            file.writestr(f"archive/{entry.replace('__', '/')}", data)
    return path


def call(module: str, name: str, argument: str) -> bytes:
    """A pickle that calls a function with a string."""
    text = argument.encode()
    return (
        b"\x80\x02c" + f"{module}\n{name}\n".encode() + b"X" + struct.pack("<I", len(text)) + text + b"\x85R."
    )


def tensor(count: int, size: int, stride: int = 1, offset: int = 0) -> bytes:
    """The pickle of {"state_dict": {"w": tensor}} whose storage claims `count` floats."""

    def number(value: int) -> bytes:
        return b"\x8a\x08" + struct.pack("<q", value)

    def text(value: str) -> bytes:
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    storage = (
        b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + number(count) + b"tQ"
    )
    arguments = (
        b"("
        + storage
        + number(offset)
        + number(size)
        + b"\x85"
        + number(stride)
        + b"\x85\x89"
        + b"ccollections\nOrderedDict\n)Rt"
    )
    return b"\x80\x02}" + text("state_dict") + b"}" + text("w") + TORCH + arguments + b"Rss."


EVIL = "import os; open('evil', 'w').close()"
CALLS = {
    **{f"{module}.{name}": call(module, name, text) for module, name, text in (
        ("os", "system", "touch evil"), ("posix", "system", "touch evil"),
        ("subprocess", "getoutput", "touch evil"),
        ("builtins", "eval", EVIL), ("builtins", "exec", EVIL), ("__builtin__", "eval", EVIL),
        ("__builtin__", "exec", EVIL), ("builtins", "open", "evil"), ("io", "open", "evil"),
        ("builtins", "__import__", "evil"), ("importlib", "import_module", "evil"),
        ("runpy", "run_path", "evil.py"),
        ("torch", "load", "evil"), ("torch.hub", "load", "evil"), ("torch.jit", "load", "evil"),
        ("torch.serialization", "load", "evil"), ("torch._dynamo", "optimize", "evil"),
        ("pty", "spawn", "evil"),
        ("webbrowser", "open", "evil"), ("shutil", "rmtree", "evil"), ("pathlib", "Path", "evil"),
        ("numpy", "load", "evil"), ("_codecs", "encode", "evil"), ("functools", "partial", "evil"),
        ("operator", "attrgetter", "evil"), ("types", "FunctionType", "evil"), ("ctypes", "CDLL", "evil.so"),
        ("omegaconf.dictconfig", "OmegaConf", "evil"), ("pytorch_lightning", "Trainer", "evil"),
        ("citadel.model.importer.pickled", "Ignored", "evil"), ("__main__", "Evil", "evil"),
        ("torch.nn", "Module", "evil"), ("torch", "device", "evil"), ("builtins", "getattr", "evil"),
    )},
    "a stack global": b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x0atouch evil\x85R.",
    "an instance": b"(S'touch evil'\nios\nsystem\n.",
    "an object": b"(cos\nsystem\nS'touch evil'\no.",
    "an extension": b"\x80\x02\x82\x01.",
    "a dotted name": b"\x80\x02ccollections\nOrderedDict.fromkeys\n.",
    "a reduced stub": b"\x80\x02ctyping\nAny\n" + b"X\x04\x00\x00\x00evil\x85R.",
    "a stub as a dictionary": b"\x80\x02cpytorch_lightning.utilities.parsing\nAttributeDict\n)\x81"
    b"X\x01\x00\x00\x00aK\x01s.",
    "a number": b"\x80\x02K\x01.",
    "a list": b"\x80\x02].",
    "no state": b"\x80\x02}.",
    "a state that is a stub": b"\x80\x02}X\x0a\x00\x00\x00state_dictctyping\nAny\n)\x81s.",
    "a state of numbers": b"\x80\x02}X\x0a\x00\x00\x00state_dict}X\x01\x00\x00\x00wK\x01ss.",
    "no stop": b"\x80\x02}",
    "nothing": b"",
    "an empty stack": b"\x80\x02.",
    "a pop of nothing": b"\x80\x02tR.",
    "a missing memo": b"\x80\x02h\x09.",
    "an unknown opcode": b"\x80\x02\xff.",
    "a huge string": b"\x80\x02X\xff\xff\xff\xff.",
    "a huge frame": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "a huge integer": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "a persistent name": b"\x80\x02Pevil\n.",
    "another protocol": b"\x80\x7f}.",
    "deep nesting": b"\x80\x02" + b"(" * 100_000 + b"." ,
    "deep tuples": b"\x80\x02N" + b"\x85" * 100_000 + b".",
}  # fmt: skip


def refused(path: Path, backbone: Path, folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        import_model(str(path), folder / "ours", backbone=str(backbone))
    message = str(caught.value)
    assert "\n" not in message and not (folder / "ours").exists()
    return message


@pytest.mark.parametrize("case", CALLS)
def test_hostile_pickle_is_refused(
    case: str, backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    message = refused(archive(tmp_path, CALLS[case]), backbone, tmp_path)
    assert "pickled checkpoint is refused" in message
    if "." in case:
        assert "could run code" in message
    assert not (tmp_path / "evil").exists()
    assert not {"pty", "webbrowser", "runpy", "evil"} & (set(sys.modules) - before)


FILES: dict[str, Any] = {
    "a storage that claims more": lambda f: archive(f, tensor(1 << 40, 1 << 40), data__0=b"\0" * 64),
    "a tensor beyond its storage": lambda f: archive(f, tensor(16, 1 << 20), data__0=b"\0" * 64),
    "a repeated element": lambda f: archive(f, tensor(16, 1 << 45, stride=0), data__0=b"\0" * 64),
    "an offset beyond": lambda f: archive(f, tensor(16, 8, offset=1 << 40), data__0=b"\0" * 64),
    "a negative offset": lambda f: archive(f, tensor(16, 8, offset=-8), data__0=b"\0" * 64),
    "a negative size": lambda f: archive(f, tensor(16, -1), data__0=b"\0" * 64),
    "a missing storage": lambda f: archive(f, tensor(16, 16)),
    "a compressed archive": lambda f: archive(
        f, tensor(16, 16), data__0=b"\0" * (1 << 20), compression=zipfile.ZIP_DEFLATED
    ),
    "two pickles": lambda f: archive(f, tensor(16, 16), data__0=b"\0" * 64, **{"other.pkl": b"."}),
    "a pickle elsewhere": lambda f: archive(f, tensor(16, 16), name="data.pkl"),
    "a script": lambda f: archive(f, tensor(16, 16), **{"constants.pkl": b"."}),
    "no archive": lambda f: written(f, b"\x80\x02cos\nsystem\nX\x0a\x00\x00\x00touch evil\x85R."),
    "an empty file": lambda f: written(f, b""),
    "half an archive": lambda f: written(f, archive(f, tensor(16, 16), data__0=b"").read_bytes()[:200]),
    "text": lambda f: written(f, b"not a checkpoint"),
}  # fmt: skip


def written(folder: Path, contents: bytes) -> Path:
    path = folder / "hostile.ckpt"
    path.write_bytes(contents)
    return path


@pytest.mark.parametrize("case", FILES)
def test_hostile_file_is_refused(
    case: str, backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message = refused(FILES[case](tmp_path), backbone, tmp_path)
    assert "pickled checkpoint is refused" in message
    assert not (tmp_path / "evil").exists()


def test_refusal_names_the_command_that_converts(backbone: Path, tmp_path: Path) -> None:
    path = archive(tmp_path, call("evil", "Module", "evil"))
    message = refused(path, backbone, tmp_path)
    assert f"torch.load('{path}', weights_only=False)['state_dict']" in message and "clean.ckpt" in message
    state = state_dict(backbone)
    torch.save({"state_dict": state}, tmp_path / "clean.ckpt")  # what the command writes
    [folder] = import_model(str(tmp_path / "clean.ckpt"), tmp_path / "clean", backbone=str(backbone))
    assert (load_config(folder).query_keys, load_config(folder).document_keys) == (1, 5)


def test_missing_checkpoint_and_folder_are_refused(backbone: Path, tmp_path: Path) -> None:
    assert "no such checkpoint" in refused(tmp_path / "none.ckpt", backbone, tmp_path)
    (tmp_path / "folder.ckpt").mkdir()
    assert "not a regular file" in refused(tmp_path / "folder.ckpt", backbone, tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: {name: part for name, part in s.items() if "cls." not in name}, "no MLM head"),
        (lambda s: {name: part for name, part in s.items() if "attention" not in name}, "lacks the tensor"),
        (lambda s: {name: part for name, part in s.items() if "query" not in name}, "no query_encoder"),
        (lambda s: {**s, "query_encoder.tok_project.0.weight": torch.ones(3, 3)}, "two encoders"),
        (lambda s: {}, "no query_encoder"),
        (lambda s: {name: part.to_sparse() for name, part in s.items()}, "could run code"),
    ],
)
def test_unfit_state_is_refused(change: Any, words: str, backbone: Path, tmp_path: Path) -> None:
    assert words in refused(checkpoint(tmp_path, change(state_dict(backbone))), backbone, tmp_path)


@pytest.mark.parametrize("keys", [0, -1, "5", True, 1.5])
def test_impossible_number_of_keys_is_refused(keys: Any, backbone: Path, tmp_path: Path) -> None:
    path = checkpoint(tmp_path, state_dict(backbone), query_topk=keys)
    assert "number of keys" in refused(path, backbone, tmp_path)
