"""Load public backbones from a folder or the Hugging Face hub and rename their tensors; safetensors only."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from citadel.encode.config import BackboneConfig, make
from citadel.errors import InputError
from citadel.model.hub import FILES, fetch
from citadel.model.names import FAMILIES, Family
from citadel.model.safety import refuse_pickles
from citadel.model.shapes import backbone_shapes

_ACTIVATIONS = {"gelu": "gelu", "gelu_python": "gelu", "relu": "relu"}
MAX_ROTARY = 4096  # tokens of a text without a position table: attention to more takes gigabytes
_BUCKETS = 32  # the only number of distance classes that transformers supports


@dataclass(frozen=True)
class Pretrained:
    """A backbone: its shape, its fp32 tensors under our names, and its folder.

    `tensors` has `router.*` if the checkpoint has an MLM head.
    """

    config: BackboneConfig
    tensors: dict[str, Tensor]
    folder: Path


def load_pretrained(name: str) -> Pretrained:
    """Read a backbone from a local folder or, if there is no such folder, from the hub."""
    folder = find_folder(name)
    pretrained = from_tensors(read_folder(folder), folder)
    if not (folder / "tokenizer.json").is_file() and not (folder / "vocab.txt").is_file():
        raise InputError(
            "the backbone has no tokenizer: put its tokenizer.json or vocab.txt beside it", str(folder)
        )
    return pretrained


def from_tensors(stored: dict[str, Tensor], folder: Path) -> Pretrained:
    """A backbone from the tensors of a checkpoint; `folder` has its config.json."""
    data = read_json(folder / "config.json")
    kind = data.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise InputError(f"a backbone of type {kind!r} is not supported: choose one of {known}", str(folder))
    family = FAMILIES[kind]
    try:
        tensors = _renamed(family, stored if family.needs_biases else _with_biases(stored), str(folder))
    except (RuntimeError, IndexError, TypeError) as error:  # shapes that cannot be joined
        raise InputError(
            f"the tensors do not fit together ({str(error).splitlines()[0][:120]}): fetch the backbone again",
            str(folder),
        ) from None
    config = _shape(family, data, tensors, str(folder))
    _require_shapes(config, tensors, str(folder))
    return Pretrained(config, tensors, folder)


def find_folder(name: str, files: list[str] = FILES) -> Path:
    """The local folder of a backbone or teacher, downloaded from the hub if there is no such folder."""
    folder = Path(name) if os.path.isdir(name) else fetch(name, files)
    refuse_pickles(folder)
    return folder


def read_json(path: Path) -> dict[str, Any]:
    """Read the `config.json` of a backbone."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            "the backbone has no config.json: name a folder saved by transformers", str(path)
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read as JSON ({error}): fetch the backbone again", str(path)) from None
    if not isinstance(data, dict):
        raise InputError("is not a JSON object: fetch the backbone again", str(path))
    return data


def read_folder(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, sharded or not."""
    return {name: tensor for file in _weight_files(folder) for name, tensor in _read_file(file)}


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        where = read_json(index).get("weight_map")
        names = sorted({str(name) for name in where.values()}) if isinstance(where, dict) else []
        # Names in the file are not trusted to stay inside the folder.
        files = [folder / os.path.basename(name) for name in names]
    else:
        files = [folder / "model.safetensors"] if (folder / "model.safetensors").is_file() else []
    for file in files:
        if not file.is_file():
            raise InputError(
                "a part of the backbone's weights is missing: fetch the backbone again", str(file)
            )
    if not files:
        raise InputError("the backbone has no safetensors weights: fetch or convert them", str(folder))
    return files


def _read_file(file: Path) -> Iterator[tuple[str, Tensor]]:
    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - safe_open is no mapping
                yield name, opened.get_tensor(name).float()
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"cannot be read as safetensors ({error}): fetch the backbone again", str(file)
        ) from None


def _renamed(family: Family, data: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """Rename the tensors of a checkpoint; pooler and other heads are dropped."""
    bare = {name.removeprefix(family.prefix): tensor for name, tensor in data.items()}
    tensors: dict[str, Tensor] = {}
    for ours, theirs in family.embeddings.items():
        _take(tensors, bare, ours, theirs, where)
    if "embeddings.type" in tensors:  # every text has type 0, so its row is added to the positions
        tensors["embeddings.position"] = tensors["embeddings.position"] + tensors.pop("embeddings.type")[0]
    layers = 0
    while any(name.startswith(_prefix(family, layers)) for name in bare):
        for ours, named in family.layer.items():
            if layers or ours != "attention.norm" or family.needs_biases:  # ModernBERT begins without a norm
                _take(tensors, bare, f"layers.{layers}.{ours}", named, where, layers)
        layers += 1
    for ours, theirs in family.final.items():
        _take(tensors, bare, ours, theirs, where)
    if all(theirs in bare or f"{theirs}.weight" in bare for theirs in family.router.values()):
        for ours, theirs in family.router.items():
            _take(tensors, bare, ours, theirs, where)
    return tensors


def _with_biases(data: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add biases of zeros to matrices and norms that have none."""
    zeros = {
        name.removesuffix("weight") + "bias": torch.zeros(len(tensor))
        for name, tensor in data.items()
        if name.endswith(".weight")
    }
    return zeros | data


def _prefix(family: Family, i: int) -> str:
    """How the names of the tensors of layer i begin."""
    first = family.layer["attention.output"]
    assert isinstance(first, str)
    return first.partition("{i}")[0] + f"{i}."


def _take(
    tensors: dict[str, Tensor],
    bare: dict[str, Tensor],
    ours: str,
    theirs: str | tuple[str, str, str],
    where: str,
    i: int = 0,
) -> None:
    """Copy one tensor, or weight and bias of one module; three modules are concatenated by row."""
    sources = [name.format(i=i) for name in ((theirs,) if isinstance(theirs, str) else theirs)]
    try:
        if sources[0] in bare:
            tensors[ours] = bare[sources[0]]
            return
        for part in ("weight", "bias"):
            tensors[f"{ours}.{part}"] = torch.cat([bare[f"{source}.{part}"] for source in sources])
    except KeyError as error:
        raise InputError(f"the backbone lacks the tensor {error}: fetch the whole backbone", where) from None


def _shape(family: Family, data: dict[str, Any], tensors: dict[str, Tensor], where: str) -> BackboneConfig:
    given = {ours: data[theirs] for ours, theirs in family.shape.items() if theirs in data}
    given |= {**family.fixed, "position_offset": family.position_offset}
    if family.fixed.get("architecture") == "modernbert":
        given |= _rotary(data, given, where)
    if given.get("relative_buckets", _BUCKETS) != _BUCKETS:
        raise InputError(f"only {_BUCKETS} classes of relative positions are supported", where)
    activation = str(given.get("activation", "gelu"))
    if activation not in _ACTIVATIONS:
        raise InputError(
            f"config.json: the activation {activation!r} is not supported: choose gelu or relu", where
        )
    given["activation"] = _ACTIVATIONS[activation]
    if data.get("position_embedding_type", "absolute") != "absolute":
        raise InputError("relative positions are not supported: choose a backbone with absolute ones", where)
    try:
        config = make(BackboneConfig, given)
    except InputError as error:
        raise InputError(f"config.json: {error.reason}", where) from None
    layers = sum(name.endswith("attention.qkv.weight") for name in tensors)
    if layers != config.layers:
        raise InputError(f"config.json says {config.layers} layers, the weights have {layers}", where)
    if data.get("embedding_size", config.hidden) != config.hidden:
        raise InputError("embeddings of another width than the layers are not supported", where)
    rows, width = (*tensors["embeddings.word"].shape, 0, 0)[:2]
    if (rows, width) != (config.vocabulary, config.hidden):
        raise InputError(
            f"the vocabulary does not match: config.json says {config.vocabulary} × {config.hidden}, "
            f"the embeddings are {rows} × {width}",
            where,
        )
    return config


def _require_shapes(config: BackboneConfig, tensors: dict[str, Tensor], where: str) -> None:
    """Raise if a tensor has another shape than config.json says."""
    expected = backbone_shapes(config)
    for name, tensor in tensors.items():
        if name in expected and tuple(tensor.shape) != expected[name]:
            raise InputError(
                f"the tensor {name} has shape {tuple(tensor.shape)}, config.json says {expected[name]}: "
                "fetch the backbone again",
                where,
            )


def _rotary(data: dict[str, Any], given: dict[str, Any], where: str) -> dict[str, Any]:
    """The fields of ModernBERT's positions, in the names of transformers 4 or 5."""
    stored = data.get("rope_parameters")
    ropes: dict[str, Any] = stored if isinstance(stored, dict) else {}
    full, local = (ropes.get(kind) or {} for kind in ("full_attention", "sliding_attention"))
    if data.get("rope_scaling") or any(
        not isinstance(rope, dict) or rope.get("rope_type", "default") != "default" for rope in (full, local)
    ):
        raise InputError("config.json: scaled rotary positions are not supported", where)
    if data.get("classifier_activation", "gelu") != "gelu":
        raise InputError("config.json: a head with an activation other than gelu is not supported", where)
    base = full.get("rope_theta", data.get("global_rope_theta", 160_000.0))
    fields: dict[str, Any] = {
        "rotary_base": base,
        "full_every": _full_every(data, given.get("layers"), where),
        "positions": _at_most(given.get("positions", 8192), MAX_ROTARY),
    }
    if fields["full_every"] != 1:
        theirs = data.get("local_rope_theta", 10_000.0)
        window = data.get("local_attention", 128)
        fields["local_rotary_base"] = local.get("rope_theta", base if theirs is None else theirs)
        fields["local_window"] = window // 2 if isinstance(window, int) else window
    return fields


def _at_most(value: Any, limit: int) -> Any:
    return min(value, limit) if isinstance(value, int) else value


def _full_every(data: dict[str, Any], layers: Any, where: str) -> Any:
    """n, if layers 0, n, 2n, … attend to the whole text."""
    kinds = data.get("layer_types")
    if kinds is None:
        return data.get("global_attn_every_n_layers", 3)
    if isinstance(kinds, list) and len(kinds) == layers:
        for step in range(1, len(kinds) + 1):
            if kinds == ["sliding_attention" if i % step else "full_attention" for i in range(len(kinds))]:
                return step
    raise InputError("config.json: layers with full attention must follow each other at equal steps", where)
