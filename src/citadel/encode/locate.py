"""Find model folders and compute their fingerprints."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from citadel.encode.config import CONFIG_FILE, ModelConfig, load_config
from citadel.encode.model_files import MAX_CONFIG, MAX_GRAPH, MAX_TOKENIZER, read_model_file
from citadel.encode.session import ONNX_FILE
from citadel.encode.tokenizer import TOKENIZER_FILE
from citadel.errors import FingerprintError, InputError, UsageError
from citadel.settings import Settings

DEFAULT = "default"
BM25 = "bm25"
VARIABLE = "CITADEL_MODEL"  # environment variable with the default choice
NAME = "small-en"  # the default model, installed with the package
_PACKAGE = Path(__file__).parent.parent
# In the package, or beside it in a checkout.
_DEFAULT_FOLDERS = (_PACKAGE / "models" / NAME, _PACKAGE.parent.parent / "models" / NAME)
_LIMITS = {ONNX_FILE: MAX_GRAPH, TOKENIZER_FILE: MAX_TOKENIZER, CONFIG_FILE: MAX_CONFIG}
_QUOTED = 60  # characters of a model name in an error message


def default_model() -> Path | None:
    """Folder of the default model, or None if it is not installed."""
    return next((folder for folder in _DEFAULT_FOLDERS if (folder / ONNX_FILE).is_file()), None)


def installed_models() -> list[Path]:
    """Folders of all models installed with the package, the default one first."""
    default = default_model()
    others = [
        folder
        for default_folder in _DEFAULT_FOLDERS
        for folder in sorted(default_folder.parent.glob("*"))
        if (folder / ONNX_FILE).is_file()
    ]
    return list(dict.fromkeys([default, *others] if default else others))


def installed_model(name: str) -> Path | None:
    """Folder of an installed model by its name.

    >>> installed_model("a-model-that-nobody-installed") is None
    True
    """
    return next((folder for folder in installed_models() if folder.name == name), None)


def model_name(named: str) -> str:
    """Name of a model as stored in an index: never a path, so that an index cannot make us open one.

    >>> model_name("default"), model_name("/models/my-model")
    ('default', 'my-model')
    """
    return named if named == DEFAULT else os.path.basename(named.rstrip("/")) or named


def index_model(given: str | os.PathLike[str] | None, name: str | None, wanted: str, location: str) -> str:
    """Folder of an index's model: the given one, else CITADEL_MODEL or an installed model that matches.

    The name in the index only helps to find an installed model; an index never provides a path.
    """
    if given is not None:
        return find_model(given)
    known = model_name(name or "")
    configured = os.environ.get(VARIABLE) or BM25
    if configured not in (BM25, DEFAULT) and os.path.isdir(configured) and space_of(configured) == wanted:
        return find_model(configured)
    installed = installed_models()
    named = [
        folder
        for folder in installed
        if known in (folder.name, DEFAULT if folder == default_model() else folder.name)
    ]
    if len(named) == 1 and len(installed) == 1:
        return str(named[0])  # checked when it is loaded
    for folder in [*named, *installed]:
        if space_of(folder) == wanted:
            return str(folder)
    if named:
        return str(named[0])  # refused when it is loaded
    raise InputError(
        f"the index was built with the model {known[:_QUOTED]!r} ({named_space(wanted)}), "
        f"which is not installed: name its folder with --model DIR, model=… or {VARIABLE}",
        location,
    )


def text_model(name: str | os.PathLike[str] | None) -> str | None:
    """Model that encodes text, "default" or an absolute path; None for BM25.

    Without a name it is CITADEL_MODEL, else the default model if it is installed. An installed model can be
    given by its name.

    >>> text_model("bm25") is None, text_model("default")
    (True, 'default')
    """
    if name is None:
        name = os.environ.get(VARIABLE) or (DEFAULT if default_model() else BM25)
    if name == BM25:
        return None
    return DEFAULT if name == DEFAULT else _folder(os.fspath(name))


def chosen_model(
    name: str | os.PathLike[str] | None, router: str | None, terms: Mapping[str, object]
) -> str | None:
    """Model that encodes text, or None for BM25; a router or a BM25 parameter without a model selects BM25.

    >>> chosen_model(None, None, {"k1": 1.2}) is None
    True
    """
    if name is None and (router is not None or terms):
        return None
    named = text_model(name)
    if named is not None and terms:
        raise UsageError(f"{next(iter(terms))} is for bm25 and cannot be used with a model: leave it out")
    return named


def _folder(name: str) -> str:
    """The path of a model, an installed one if there is no such folder and it has this name."""
    installed = None if os.path.isdir(name) else installed_model(name)
    return str(installed) if installed else _absolute(name)


def _absolute(path: str) -> str:
    if not path:
        raise InputError("a model is a folder made by `citadel export`: give its path")
    whole = os.path.abspath(path)
    if whole.encode(errors="ignore").decode() != whole:
        raise InputError(
            "the path of a model must be valid UTF-8, because the index stores it: rename it", repr(path)
        )
    return whole


def find_model(name: str | os.PathLike[str]) -> str:
    """Folder of a model: a path, the name of an installed one, or "default"."""
    if name == DEFAULT:
        installed = default_model()
        if installed is None:
            raise InputError(
                "no default model is installed with this copy: name a folder made by `citadel export`"
            )
        return str(installed)
    folder = _folder(os.fspath(name))
    if not os.path.isdir(folder):
        advice = (
            "name a folder made by `citadel export`; a model of the Hugging Face hub must be exported first"
        )
        raise InputError(f"there is no such model folder: {advice}", os.fspath(name))
    return folder


def query_model(name: str | os.PathLike[str]) -> str:
    """Folder of a model for queries: an installed one by its name, or a path.

    >>> query_model("default") == str(default_model())
    True
    """
    named = os.fspath(name)
    if named == DEFAULT or os.sep in named:
        return find_model(named)
    if installed := installed_model(named):
        return str(installed)
    if os.path.isdir(named):
        return find_model(named)
    known = ", ".join(folder.name for folder in installed_models()) or "none"
    raise InputError(f"there is no such model: installed are {known}; or give the path of a folder", named)


def space_of(folder: str | os.PathLike[str], contents: bytes | None = None) -> str:
    """The space of a model: the one that its config names, else a space of its own, its fingerprint."""
    return load_config(folder).space or fingerprint(folder, contents)


def named_space(space: str) -> str:
    """A space as named in messages.

    >>> named_space("a" * 64), named_space("small-en-2")
    ('fingerprint aaaaaaaaaaaa…', 'space small-en-2')
    """
    return f"fingerprint {space[:12]}…" if re.fullmatch("[0-9a-f]{64}", space) else f"space {space}"


def fingerprint(folder: str | os.PathLike[str], contents: bytes | None = None) -> str:
    """SHA-256 over the model's graph, tokenizer and config, each preceded by its name and length.

    `contents` are those of `model.onnx`, if already read.
    """
    digest = hashlib.sha256()
    for name in (ONNX_FILE, TOKENIZER_FILE, CONFIG_FILE):
        data = contents if name == ONNX_FILE and contents is not None else None
        if data is None:
            data = read_model_file(os.path.join(folder, name), _LIMITS[name])
        digest.update(f"{name} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def require_space(config: ModelConfig, space: str, settings: Settings, where: str) -> None:
    """Raise FingerprintError for a model of another space than the index, or of other dimensions.

    >>> from citadel.settings import Field
    >>> index = Settings("dynamic", "a" * 64, Field(32), Field(128), model="small-en")
    >>> require_space(ModelConfig("dynamic"), "b" * 64, index, "m")
    Traceback (most recent call last):
    citadel.errors.FingerprintError: m: this model's fingerprint is bbbbbbbbbbbb…, the index was built ...
    """
    own, wanted = named_space(space), named_space(settings.fingerprint)
    if space != settings.fingerprint:
        raise FingerprintError(
            f"this model's {own.replace(' ', ' is ', 1)}, the index was built with {wanted}: "
            "name the folder of a model of that space, or build the index again",
            where,
        )
    lexical, semantic = settings.lexical, settings.semantic
    shape = (config.router, config.token_dimension, config.semantic_dimension)
    index = (
        "all_to_all" if settings.router == "centroid" else settings.router,
        lexical.dimension if lexical else 0,
        semantic.dimension if semantic else 0,
    )
    if shape != index:
        raise FingerprintError(
            f"this model has router, token and semantic dimension {shape}, the index {index}: "
            "its config.json names a space that it does not belong to; export the model again",
            where,
        )


def require_same_vocabulary(folder: str, other: str) -> None:
    """Raise FingerprintError unless two models of one space have the same tokens: these are the keys."""
    if _vocabulary(folder) != _vocabulary(other):
        raise FingerprintError(
            f"the vocabulary differs from that of the index's model ({other}): models of one space share "
            "their tokenizer; distil or export the model again",
            folder,
        )


def _vocabulary(folder: str) -> Any:
    contents = read_model_file(os.path.join(folder, TOKENIZER_FILE), MAX_TOKENIZER)
    try:
        return json.loads(contents)["model"]["vocab"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return contents  # reported when the model is loaded
