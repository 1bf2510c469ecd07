"""Read the folder of a foreign model: its JSON files, its modules and the tensors of each; nothing is run."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from citadel.encode.model_files import MAX_CONFIG, read_model_file
from citadel.errors import InputError
from citadel.model.checkpoint import read_tensors
from citadel.model.safety import refuse_pickles

MODULES, SETTINGS = "modules.json", "config_sentence_transformers.json"
ROUTES = "router_config.json"
WEIGHTS = "model.safetensors"
STATIC = "SparseStaticEmbedding"  # stored weights of a query's tokens
_LONGEST_NAME = 255
_NO_CONFIG = ("Transformer", "MLMTransformer", "Router")  # read elsewhere
_PACKAGES = ("sentence_transformers.", "pylate.")
_ACTIVATIONS = {"torch.nn.modules.linear.Identity": "", "torch.nn.modules.activation.Tanh": "tanh"}


@dataclass(frozen=True)
class Module:
    """One entry of modules.json: its class, its folder and its config."""

    kind: str  # "Pooling"
    folder: Path
    config: dict[str, Any]


@dataclass(frozen=True)
class Dense:
    """A chain of Dense modules as one: weight [out, in], bias [out], and the last activation."""

    weight: Tensor
    bias: Tensor
    activation: str = ""

    def then(self, other: Dense, where: str) -> Dense:
        """This projection followed by another one."""
        if self.activation:
            raise InputError("a Dense module after an activation is not supported", where)
        if self.weight.shape[0] != other.weight.shape[1]:
            raise InputError("the sizes of its Dense modules do not match: fetch the model again", where)
        return Dense(other.weight @ self.weight, other.weight @ self.bias + other.bias, other.activation)


def read_json(path: Path) -> Any:
    """A JSON file of bounded size; an absent file is an empty object."""
    if not os.path.lexists(path):
        return {}
    try:
        return json.loads(read_model_file(str(path), MAX_CONFIG))
    except RecursionError:
        raise InputError(
            "cannot be read as JSON (nested too deeply): fetch the model again", str(path)
        ) from None
    except ValueError as error:
        raise InputError(f"cannot be read as JSON ({error}): fetch the model again", str(path)) from None


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object; an absent file is an empty one."""
    data = read_json(path)
    if not isinstance(data, dict):
        raise InputError("is not a JSON object: fetch the model again", str(path))
    return data


def read_modules(folder: Path) -> list[Module]:
    """The modules of a sentence-transformers folder in their order; none without modules.json."""
    path = folder / MODULES
    entries = read_json(path) or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError("is not a list of modules: fetch the model again", str(path))
    return [_module(folder, str(entry.get("type")), str(entry.get("path", "")), path) for entry in entries]


def flatten_routes(modules: list[Module], folder: Path) -> list[Module]:
    """The modules of documents, then those of queries, of a model with a route for each."""
    if [module.kind for module in modules] != ["Router"]:
        return modules
    path = modules[0].folder / ROUTES
    routes = read_object(path)
    structure, kinds = routes.get("structure"), routes.get("types")
    if not isinstance(structure, dict) or not isinstance(kinds, dict):
        raise InputError("has no structure of routes: fetch the model again", str(path))
    if structure.keys() != {"query", "document"} or (routes.get("parameters") or {}).get("route_mappings"):
        raise InputError("routes other than query and document are not supported", str(path))
    names = [structure["document"], structure["query"]]
    if not all(isinstance(part, list) and all(isinstance(name, str) for name in part) for part in names):
        raise InputError("has no structure of routes: fetch the model again", str(path))
    documents, queries = ([_module(folder, str(kinds.get(n)), n, path) for n in part] for part in names)
    if [module.kind for module in queries] != [STATIC]:
        raise InputError(
            f"two encoders, one for queries and one for documents, are not supported: only {STATIC} is for "
            "queries",
            str(path),
        )
    return [*documents, *queries]


def _module(folder: Path, kind: str, inner: str, path: Path) -> Module:
    if not kind.startswith(_PACKAGES):
        raise InputError(
            f"the module {kind[:80]!r} is custom code, which is never run: only modules of "
            "sentence-transformers and PyLate are imported",
            str(path),
        )
    own = folder / inner_name(inner, path)
    name = kind.rpartition(".")[2]
    return Module(name, own, {} if name in _NO_CONFIG else read_object(own / "config.json"))


def inner_name(name: str, path: Path) -> str:
    """The name of a folder directly inside the model's; a path that leaves it is an error."""
    if os.path.basename(name) != name or name in (".", "..") or "\0" in name or len(name) > _LONGEST_NAME:
        raise InputError(
            f"the module path {name[:60]!r} leaves the model's folder: fetch it again", str(path)
        )
    return name


def transformer_settings(folder: Path) -> dict[str, Any]:
    """sentence_bert_config.json, or the file of another family."""
    files = sorted(folder.glob("sentence_*_config.json"))
    return read_object(files[0]) if files else {}


def read_dense(module: Module) -> Dense:
    """The projection of a Dense module."""
    where, config = str(module.folder), module.config
    named = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    if named not in _ACTIVATIONS:
        raise InputError(f"the activation {named[:60]!r} of a Dense module is not supported", where)
    if config.get("use_residual"):
        raise InputError("a Dense module with a residual connection is not supported", where)
    tensors = module_tensors(module.folder)
    weight = tensors.get("linear.weight")
    if weight is None or weight.dim() != 2:
        raise InputError("the Dense module has no matrix linear.weight: fetch the model again", where)
    bias = tensors.get("linear.bias", torch.zeros(len(weight)))
    if bias.shape != weight.shape[:1]:
        raise InputError("the bias of a Dense module does not match its matrix: fetch the model again", where)
    return Dense(weight.float(), bias.float(), _ACTIVATIONS[named])


def module_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of a module's folder."""
    file = folder / WEIGHTS
    if not file.exists():
        if folder.is_dir():
            refuse_pickles(folder)
        raise InputError("the weights of a module are missing: fetch the whole model", str(file))
    require_regular(file)
    return read_tensors(file)


def require_regular(path: Path) -> None:
    """Raise for a pipe, a device or a folder, which must not be opened."""
    if not path.is_file():
        raise InputError("it is not a regular file: fetch the model again", str(path))


def project(denses: list[Dense], width: int, where: str) -> Dense:
    """Join a chain of projections; without any it is the identity."""
    joined = denses[0] if denses else Dense(torch.eye(width), torch.zeros(width))
    for dense in denses[1:]:
        joined = joined.then(dense, where)
    if joined.weight.shape[1] != width:
        raise InputError(
            f"a Dense module reads {joined.weight.shape[1]} values, the backbone gives {width}: "
            "fetch the model again",
            where,
        )
    return joined
