"""SPLADE: SparseEncoder of sentence-transformers, with a model or stored weights for queries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from citadel.encode.model_files import MAX_TOKENIZER, read_model_file
from citadel.encode.tokenizer import TOKENIZER_FILE
from citadel.errors import InputError
from citadel.model.importer.skip_lists import skip_lists
from citadel.model.importer.source import (
    STATIC,
    Module,
    module_tensors,
    read_object,
    transformer_settings,
)
from citadel.model.importer.tokens import ForeignTokenizer, prompts
from citadel.model.load import Pretrained, read_folder
from citadel.model.names import FAMILIES

_ACTIVATIONS = {"relu": "log", "log1p_relu": "log log"}
_MASK = "MultiVectorMask"  # skip lists
_SPECIAL = 2  # [CLS] and [SEP], which stored weights do not count


def splade(
    modules: list[Module], settings: dict[str, Any], pretrained: Pretrained, tokenizer: ForeignTokenizer
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Fields of the config, and the tensors of the head; the last module may be the weights of queries."""
    where = str(pretrained.folder)
    pooling = _pooling(modules, where)
    skipped = skip_lists([module for module in modules if module.kind == _MASK])
    if settings.get("similarity_fn_name") not in (None, "dot"):
        raise InputError("a sparse model with a similarity other than dot is not supported", where)
    if settings.get("max_active_dims"):
        raise InputError("a sparse model with max_active_dims is not supported", where)
    _require_head(pretrained, where)
    query, document = prompts(settings, where)
    fields = {
        "token_dimension": 0,
        "semantic_dimension": 0,
        "route_cls": True,
        "query_prompt": tokenizer.prompt(query),
        "document_prompt": tokenizer.prompt(document),
        "skipped_tokens": tokenizer.known(skipped["document"]),
        "unrouted_query_tokens": tokenizer.known(skipped["query"]),
        **pooling,
    }
    tensors = {name: part for name, part in pretrained.tensors.items() if name.startswith("router.")}
    if modules and modules[-1].kind == STATIC:
        static, weights = _static(modules[-1], pretrained, tokenizer)
        fields, tensors = fields | static, tensors | weights
    return fields, tensors


def _pooling(modules: list[Module], where: str) -> dict[str, str]:
    """Pooling and activation; a checkpoint without modules is that of the SPLADE papers since the second."""
    if not modules:
        return {}
    modules = [module for module in modules if module.kind != _MASK]
    kinds = [module.kind for module in modules]
    if kinds[1:] not in (["SpladePooling"], ["SpladePooling", STATIC]):
        raise InputError(
            f"the modules {', '.join(kinds)[:100]} are not supported: a sparse model has a Transformer and "
            "SpladePooling",
            where,
        )
    task = transformer_settings(modules[0].folder).get("transformer_task")
    if kinds[0] == "Transformer" and task != "fill-mask":
        raise InputError("a sparse model whose Transformer has no fill-mask head is not supported", where)
    config = modules[1].config
    pooling, activation = config.get("pooling_strategy", "max"), config.get("activation_function", "relu")
    if pooling not in ("max", "sum") or activation not in _ACTIVATIONS:
        raise InputError(
            f"the pooling {str(pooling)[:40]!r} with {str(activation)[:40]!r} is not supported: only max and "
            "sum with relu and log1p_relu are",
            str(modules[1].folder),
        )
    return {"sparse_pooling": pooling, "sparse_activation": _ACTIVATIONS[activation]}


def _require_head(pretrained: Pretrained, where: str) -> None:
    """Raise unless the checkpoint has an MLM head with GELU whose decoder is the word embeddings."""
    if "router.bias" not in pretrained.tensors:
        raise InputError("a sparse model needs the MLM head of its backbone, which has none", where)
    family = FAMILIES[str(read_object(pretrained.folder / "config.json").get("model_type"))]
    if pretrained.config.activation != "gelu":
        raise InputError("an MLM head with an activation other than gelu is not supported", where)
    decoder = read_folder(pretrained.folder).get(family.decoder)
    word = pretrained.tensors["embeddings.word"]
    if decoder is not None and not torch.equal(decoder, word):
        raise InputError("an MLM head with a decoder of its own (untied) is not supported", where)


def _static(
    module: Module, pretrained: Pretrained, tokenizer: ForeignTokenizer
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Fields and weights of queries that need no model."""
    where = str(module.folder)
    weight = module_tensors(module.folder).get("weight")
    if weight is None or weight.dim() != 1:
        raise InputError("the module has no list of weights: fetch the model again", where)
    rows = pretrained.config.vocabulary
    if not len(tokenizer.vocabulary) <= len(weight) <= rows or not bool((weight >= 0).all()):
        raise InputError(
            f"the weights of queries do not match: {len(weight):,} numbers from 0, not one for each of "
            f"{len(tokenizer.vocabulary):,} tokens",
            where,
        )
    if not bool(weight.isfinite().all()):
        raise InputError("the weights of queries hold infinity: fetch the model again", where)
    if _rules(module.folder) != _rules(pretrained.folder):
        raise InputError("queries and documents with different tokenizers are not supported", where)
    padded = torch.zeros(rows)
    padded[: len(weight)] = weight.float()
    special = tokenizer.special()
    length = read_object(module.folder / "tokenizer_config.json").get("model_max_length")
    fields: dict[str, Any] = {
        "static_queries": True,
        "unrouted_query_tokens": (special["cls_id"], special["sep_id"]),
    }
    if isinstance(length, int | float) and length >= 1:
        fields["query_length"] = int(min(length, pretrained.config.longest)) + _SPECIAL
    return fields, {"query.weight": padded}


def _rules(folder: Path) -> list[Any]:
    """The parts of a tokenizer that decide on ids."""
    path = folder / TOKENIZER_FILE
    try:
        data = json.loads(read_model_file(str(path), MAX_TOKENIZER))
        return [data.get(name) for name in ("added_tokens", "normalizer", "pre_tokenizer", "model")]
    except (ValueError, RecursionError, AttributeError):
        raise InputError("cannot be read as a tokenizer: fetch the model again", str(path)) from None
