"""Find model folders and compute their fingerprints."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from citadel.encode.config import CONFIG_FILE
from citadel.encode.model_files import MAX_CONFIG, MAX_GRAPH, MAX_TOKENIZER, read_model_file
from citadel.encode.session import ONNX_FILE
from citadel.encode.tokenizer import TOKENIZER_FILE
from citadel.errors import FingerprintError, InputError, UsageError

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
    if configured not in (BM25, DEFAULT) and os.path.isdir(configured) and fingerprint(configured) == wanted:
        return find_model(configured)
    installed = installed_models()
    for folder in installed:
        if known in (folder.name, DEFAULT if folder == default_model() else folder.name):
            return str(folder)
    for folder in installed:
        if fingerprint(folder) == wanted:
            return str(folder)
    raise InputError(
        f"the index was built with the model {known[:_QUOTED]!r} (fingerprint {wanted[:12]}…), "
        f"which is not installed: name its folder with --model DIR, model=… or {VARIABLE}",
        location,
    )


def text_model(name: str | os.PathLike[str] | None) -> str | None:
    """Model that encodes text, "default" or an absolute path; None for BM25.

    Without a name it is CITADEL_MODEL, else the default model if it is installed.

    >>> text_model("bm25") is None, text_model("default")
    (True, 'default')
    """
    if name is None:
        name = os.environ.get(VARIABLE) or (DEFAULT if default_model() else BM25)
    if name == BM25:
        return None
    return DEFAULT if name == DEFAULT else _absolute(os.fspath(name))


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
    """Folder of a model given by its path, or of the default model, "default"."""
    if name == DEFAULT:
        installed = default_model()
        if installed is None:
            raise InputError(
                "no default model is installed with this copy: name a folder made by `citadel export`"
            )
        return str(installed)
    folder = _absolute(os.fspath(name))
    if not os.path.isdir(folder):
        advice = (
            "name a folder made by `citadel export`; a model of the Hugging Face hub must be exported first"
        )
        raise InputError(f"there is no such model folder: {advice}", os.fspath(name))
    return folder


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


def require_fingerprint(actual: str, wanted: str, where: str) -> None:
    """Raise FingerprintError for a model other than the one an index was built with.

    >>> require_fingerprint("b" * 64, "a" * 64, "m")
    Traceback (most recent call last):
    citadel.errors.FingerprintError: m: this model's fingerprint is bbbbbbbbbbbb…, the index was ...
    """
    if actual != wanted:
        raise FingerprintError(
            f"this model's fingerprint is {actual[:12]}…, the index was built with {wanted[:12]}…: "
            "name the folder of that model with --model, or build the index again",
            where,
        )
