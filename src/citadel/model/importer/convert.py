"""Convert the model of another library to a model folder of citadel."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from citadel.encode.config import ModelConfig
from citadel.encode.tokenizer import TOKENIZER_FILE
from citadel.errors import InputError, UsageError
from citadel.model.export import CARD, WEIGHTS, Report, export
from citadel.model.hub import MODEL_FILES, pinned
from citadel.model.importer.bi_encoder import bi_encoder
from citadel.model.importer.colbert import colbert, is_stanford, stanford
from citadel.model.importer.dpr_scale import BACKBONE, LICENSE, is_checkpoint, read_checkpoint
from citadel.model.importer.source import (
    SETTINGS,
    Module,
    flatten_routes,
    read_modules,
    read_object,
    require_regular,
    transformer_settings,
)
from citadel.model.importer.splade import splade
from citadel.model.importer.tokens import ForeignTokenizer
from citadel.model.load import Pretrained, find_folder, load_pretrained

Reader = Callable[
    [list[Module], dict[str, Any], Pretrained, ForeignTokenizer], tuple[dict[str, Any], dict[str, Tensor]]
]
_STANFORD, _SPLADE = "Stanford ColBERT", "SparseEncoder"
READERS: dict[str, tuple[str, Reader]] = {
    "SentenceTransformer": ("none", bi_encoder),
    "MultiVectorEncoder": ("all_to_all", colbert),
    "ColBERT": ("all_to_all", colbert),  # PyLate
    _STANFORD: ("all_to_all", stanford),
    _SPLADE: ("sparse", splade),
}
_TYPES = {"": "", "splade": _SPLADE}  # the user's names of what a folder without modules.json is


def import_model(
    source: str,
    out: str | os.PathLike[str],
    precision: str = "int8",
    overwrite: bool = False,
    report: Report = lambda line: None,
    kind: str = "",
    backbone: str = BACKBONE,
) -> list[Path]:
    """Write the model of a folder or hub id as a model folder; "both" writes one folder per precision.

    `kind` "splade" reads a checkpoint with an MLM head and without modules.json as SPLADE. A source that is
    a `.ckpt` file is CITADEL of dpr-scale, trained from `backbone`. The graph is compared with the numpy
    forward pass and with torch before the folder gets its name.
    """
    if kind not in _TYPES:
        raise UsageError(f"unknown type {kind!r}: the only one is splade; others are found in the folder")
    if is_checkpoint(source):
        config, tensors, tokenizer = read_checkpoint(source, backbone)
        note = f"{_note(source)}\n\n{LICENSE}"
    else:
        folder = find_folder(source, MODEL_FILES)
        config, tensors, tokenizer = read_source(folder, _TYPES[kind])
        note = _note(pinned(source, folder))
    name = _name(source)
    with tempfile.TemporaryDirectory(prefix="citadel-import-") as checkpoint:
        _write_checkpoint(Path(checkpoint), replace(config, name=name), tensors, tokenizer)
        Path(checkpoint, CARD).write_text(note, encoding="utf-8")
        return export(checkpoint, out, precision, overwrite, report)


def _name(source: str) -> str:
    if os.path.exists(source):
        return Path(source).resolve().stem if os.path.isfile(source) else Path(source).resolve().name
    return source.partition("@")[0].rpartition("/")[2]


def read_source(folder: Path, kind: str = "") -> tuple[ModelConfig, dict[str, Tensor], Path]:
    """Config and tensors of a foreign model under our names, and its tokenizer."""
    modules = flatten_routes(read_modules(folder), folder)
    settings = read_object(folder / SETTINGS)
    backbone = modules[0].folder if modules else folder
    _refuse_code(backbone)
    kind = kind if kind and not modules else _kind(modules, settings, folder)
    for file in sorted(backbone.glob("*.safetensors")):
        require_regular(file)
    tokenizer = ForeignTokenizer(backbone)
    pretrained = load_pretrained(str(backbone))
    router, reader = READERS[kind]
    fields, heads = reader(modules, settings, pretrained, tokenizer)
    own = transformer_settings(backbone)
    if own.get("do_lower_case"):
        tokenizer.require_lower_case()
    lengths = _lengths(own, read_object(backbone / "tokenizer_config.json"), pretrained)
    tensors = {name: part for name, part in pretrained.tensors.items() if not name.startswith("router.")}
    given = {**lengths, **tokenizer.special(), **fields}
    return ModelConfig(router, pretrained.config, **given), tensors | heads, backbone / TOKENIZER_FILE


def _kind(modules: list[Module], settings: dict[str, Any], folder: Path) -> str:
    """The kind of a model: the class that loads it, or Stanford's layout."""
    if not modules and is_stanford(folder):
        return _STANFORD
    if not modules:
        raise InputError(
            "there is neither modules.json nor artifact.metadata, so it is no sentence encoder or ColBERT: "
            "import a SPLADE checkpoint with --type splade; a plain backbone is trained with `citadel train`",
            str(folder),
        )
    if modules[0].kind not in ("Transformer", "MLMTransformer"):
        raise InputError(f"the module {modules[0].kind[:60]!r} is not supported", str(folder))
    unnamed = "ColBERT" if "query_prefix" in settings else "SentenceTransformer"  # older versions
    kind = str(settings.get("model_type") or unnamed)
    if kind not in READERS:
        raise InputError(
            f"a model of type {kind[:40]!r} is not supported: known are {', '.join(READERS)}", str(folder)
        )
    return kind


def _refuse_code(folder: Path) -> None:
    if "auto_map" in read_object(folder / "config.json"):
        raise InputError(
            "the model needs its own code (trust_remote_code), which is never run: choose a model of a "
            "standard architecture",
            str(folder / "config.json"),
        )


def _lengths(own: dict[str, Any], tokenizer: dict[str, Any], pretrained: Pretrained) -> dict[str, int]:
    """Maximum lengths of queries and documents."""
    longest = pretrained.config.longest
    general = own.get("max_seq_length") or tokenizer.get("model_max_length") or longest
    lengths = {}
    for side in ("query_length", "document_length"):
        length = own.get(side) or general
        if not isinstance(length, int | float) or isinstance(length, bool) or not length >= 3:
            raise InputError(f"the length {length!r} is not supported", str(pretrained.folder))
        lengths[side] = int(min(length, longest))
    return lengths


def _write_checkpoint(folder: Path, config: ModelConfig, tensors: dict[str, Tensor], tokenizer: Path) -> None:
    save_file({name: tensor.float().contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)
    config.save(folder)
    shutil.copyfile(tokenizer, folder / TOKENIZER_FILE)


def _note(source: str) -> str:
    name = os.path.basename(source.rstrip("/")) if os.path.exists(source) else source
    return (
        f"Imported from `{name}` with `citadel import`. The license and the training data of that model "
        "apply; its own card describes them."
    )
