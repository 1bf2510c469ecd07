"""CITADEL checkpoints of dpr-scale, the code of the paper's authors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from citadel.encode.config import ModelConfig
from citadel.encode.tokenizer import TOKENIZER_FILE
from citadel.errors import InputError
from citadel.model.hub import fetch
from citadel.model.importer.pickled import plain, read_pickled, read_state
from citadel.model.importer.source import read_object
from citadel.model.importer.tokens import ForeignTokenizer
from citadel.model.load import Pretrained, from_tensors

BACKBONE = "bert-base-uncased"  # of the published checkpoints
LICENSE = (
    "The weights that the authors of CITADEL published with dpr-scale are licensed under CC-BY-NC, which "
    "excludes commercial use."
)
_TAU = 0.9  # the authors prune documents at this weight
_FILES = ["config.json", TOKENIZER_FILE]
_MAX_QUERY, _MAX_DOCUMENT = 64, 512


def is_checkpoint(source: str) -> bool:
    """Whether a source is a file of torch rather than a folder or a hub id.

    >>> is_checkpoint("checkpoint_best.ckpt"), is_checkpoint("org/model")
    (True, False)
    """
    return source.endswith((".ckpt", ".pt", ".pth")) or os.path.isfile(source)


def read_checkpoint(source: str, backbone: str) -> tuple[ModelConfig, dict[str, Tensor], Path]:
    """Config, tensors and tokenizer; `backbone` is the folder or hub id that the training began with."""
    path = Path(source)
    if not os.path.lexists(path):
        raise InputError("there is no such checkpoint: check the name", source)
    folder = _backbone(backbone)
    data = read_pickled(path)
    settings = data.get("hyper_parameters")
    state = _one_encoder(read_state(data.get("state_dict"), source), source)
    stored = {
        name.removeprefix("transformer."): part
        for name, part in state.items()
        if name.startswith("transformer.")
    }
    pretrained = from_tensors(stored, folder)
    if "router.bias" not in pretrained.tensors:
        raise InputError("the checkpoint has no MLM head, so it is not CITADEL", source)
    tokenizer = ForeignTokenizer(folder)
    fields, heads = _heads(state, settings if isinstance(settings, dict) else {}, pretrained, source)
    longest = pretrained.config.longest
    config = ModelConfig(
        "dynamic",
        pretrained.config,
        tau=_TAU,
        query_length=min(_MAX_QUERY, longest),
        document_length=min(_MAX_DOCUMENT, longest),
        **{**tokenizer.special(), **fields},
    )
    return config, pretrained.tensors | heads, tokenizer.path


def _backbone(name: str) -> Path:
    folder = Path(name) if os.path.isdir(name) else fetch(name, _FILES)
    if "auto_map" in read_object(folder / "config.json"):
        raise InputError(
            "the backbone needs its own code (trust_remote_code), which is never run", str(folder)
        )
    return folder


def _one_encoder(state: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """The tensors of the encoder that queries and documents share."""
    query, context = (
        {name.removeprefix(prefix): part for name, part in state.items() if name.startswith(prefix)}
        for prefix in ("query_encoder.", "context_encoder.")
    )
    if not query:
        raise InputError(
            "the checkpoint has no query_encoder: only CITADEL models of dpr-scale are read", where
        )
    if context and not (
        context.keys() == query.keys()
        and all(torch.equal(part, context[name]) for name, part in query.items())
    ):
        raise InputError("two encoders, one for queries and one for documents, are not supported", where)
    return query


def _heads(
    state: dict[str, Tensor], settings: dict[Any, Any], pretrained: Pretrained, where: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Numbers of keys, and the projections of tokens and of [CLS]; without one it is the identity."""
    heads = _head(state, "tok_project", "token", pretrained, where)
    has_semantic = plain(settings.get("add_cls")) is not False
    if has_semantic:
        heads |= _head(state, "cls_project", "semantic", pretrained, where)
    fields = {
        "token_dimension": len(heads["token.weight"]),
        "semantic_dimension": len(heads["semantic.weight"]) if has_semantic else 0,
        "query_keys": _count(settings.get("query_topk"), 1, where),
        "document_keys": _count(settings.get("context_topk"), 5, where),
    }
    return fields, heads


def _head(
    state: dict[str, Tensor], theirs: str, ours: str, pretrained: Pretrained, where: str
) -> dict[str, Tensor]:
    width = pretrained.config.hidden
    weight = state.get(f"{theirs}.0.weight", torch.eye(width))
    bias = state.get(f"{theirs}.0.bias", torch.zeros(len(weight)))
    if weight.dim() != 2 or weight.shape[1] != width or bias.shape != weight.shape[:1]:
        raise InputError(
            f"{theirs} does not fit the backbone's {width} values: take another checkpoint", where
        )
    return {f"{ours}.weight": weight, f"{ours}.bias": bias}


def _count(value: Any, default: int, where: str) -> int:
    number = plain(value)
    if number is None:
        return default
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise InputError(f"the number of keys {str(number)[:40]!r} is not supported", where)
    return number
