"""ColBERT models: MultiVectorEncoder of sentence-transformers, PyLate, and Stanford's checkpoints."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from citadel.errors import InputError
from citadel.model.importer.skip_lists import skip_lists, strings
from citadel.model.importer.source import (
    Dense,
    Module,
    project,
    read_dense,
    read_object,
    transformer_settings,
)
from citadel.model.importer.tokens import ForeignTokenizer, prompts
from citadel.model.load import Pretrained, read_folder

METADATA = "artifact.metadata"  # of Stanford's checkpoints
_QUERY_TOKENS = 32  # the length of queries in ColBERT
# Settings that only PyLate writes; with one of them, queries are expanded unless it says otherwise.
_PYLATE = (
    "query_length",
    "document_length",
    "query_prefix",
    "document_prefix",
    "skiplist_words",
    "do_query_expansion",
    "attend_to_expansion_tokens",
    "attend_to_mask_tokens",
)

Parts = tuple[dict[str, Any], dict[str, Tensor]]


def is_stanford(folder: Path) -> bool:
    """Whether a folder without modules.json is a checkpoint of Stanford's ColBERT."""
    return (folder / METADATA).exists() or "HF_ColBERT" in str(
        read_object(folder / "config.json").get("architectures")
    )


def stanford(
    modules: list[Module], settings: dict[str, Any], pretrained: Pretrained, tokenizer: ForeignTokenizer
) -> Parts:
    """Fields and projection of a checkpoint with artifact.metadata and linear.weight beside the backbone."""
    del modules, settings
    metadata, where = read_object(pretrained.folder / METADATA), str(pretrained.folder)
    weight = read_folder(pretrained.folder).get("linear.weight")
    if weight is None or weight.dim() != 2:
        raise InputError("the checkpoint has no matrix linear.weight: fetch the model again", where)
    as_pylate = {
        "query_prefix": _marker(metadata.get("query_token_id") or "[unused0]", where),
        "document_prefix": _marker(metadata.get("doc_token_id") or "[unused1]", where),
        "query_length": metadata.get("query_maxlen"),
        "document_length": metadata.get("doc_maxlen"),
        "attend_to_mask_tokens": metadata.get("attend_to_mask_tokens"),
    }
    words = list(string.punctuation) if metadata.get("mask_punctuation", True) else []
    dense = project([Dense(weight, torch.zeros(len(weight)))], pretrained.config.hidden, where)
    return _fields(as_pylate, {}, {"document": words}, dense, pretrained, tokenizer)


def colbert(
    modules: list[Module], settings: dict[str, Any], pretrained: Pretrained, tokenizer: ForeignTokenizer
) -> Parts:
    """Fields and projection of a MultiVectorEncoder, or of a PyLate model, which lists fewer modules."""
    where = str(pretrained.folder)
    denses: list[Dense] = []
    masks: list[Module] = []
    is_normalized = settings.get("model_type") != "MultiVectorEncoder"
    for module in modules[1:]:
        if module.kind == "Dense" and not masks:
            denses.append(_token_dense(module))
        elif module.kind == "MultiVectorMask":
            masks.append(module)
        elif module.kind == "Normalize":
            is_normalized = True
        else:
            raise InputError(
                f"the module {module.kind[:60]!r} is not supported: a ColBERT model may have Dense, then "
                "MultiVectorMask and Normalize",
                where,
            )
    if not is_normalized:
        raise InputError("a ColBERT model without a Normalize module is not supported", where)
    if settings.get("similarity_fn_name") == "meanmaxsim":
        raise InputError("the similarity 'meanmaxsim' is not supported: only maxsim is", where)
    skipped = skip_lists(masks)
    if not masks:
        words = settings.get("skiplist_words")
        skipped = {"document": list(string.punctuation) if words is None else strings(words, where)}
    own = transformer_settings(pretrained.folder)
    dense = project(denses, pretrained.config.hidden, where)
    return _fields(settings, own, skipped, dense, pretrained, tokenizer)


def _token_dense(module: Module) -> Dense:
    if module.config.get("module_input_name", "token_embeddings") != "token_embeddings":
        raise InputError(
            "a Dense module that does not read token vectors is not supported", str(module.folder)
        )
    dense = read_dense(module)
    if dense.activation:
        raise InputError("token vectors with an activation are not supported", str(module.folder))
    return dense


def _fields(
    settings: dict[str, Any],
    own: dict[str, Any],
    skipped: dict[str, list[str]],
    dense: Dense,
    pretrained: Pretrained,
    tokenizer: ForeignTokenizer,
) -> Parts:
    where, longest = str(pretrained.folder), pretrained.config.longest
    query, document = _prompts(settings, tokenizer, where)
    fields = {
        "token_dimension": len(dense.weight),
        "semantic_dimension": 0,
        "query_prompt": query,
        "document_prompt": document,
        "route_cls": True,
        "skipped_tokens": tokenizer.known(skipped.get("document", [])),
        "unrouted_query_tokens": tokenizer.known(skipped.get("query", [])),
    }
    length = own.get("document_length") or settings.get("document_length")
    if length is not None:
        fields["document_length"] = min(_length(length, where), longest)
    expansion = own.get("query_expansion", _expansion(settings))
    if expansion is not None:
        fields |= _expanded(expansion, own, longest, tokenizer, where)
    return fields, {"token.weight": dense.weight, "token.bias": dense.bias}


def _marker(name: Any, where: str) -> str:
    if not isinstance(name, str):
        raise InputError("a marker of queries or documents is not a string: fetch the model again", where)
    return f"{name} "


def _prompts(
    settings: dict[str, Any], tokenizer: ForeignTokenizer, where: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Markers such as "[Q] ", then the prompts."""
    query, document = (
        _prompt(settings.get(f"{side}_prefix") or "", text, tokenizer, where)
        for side, text in zip(("query", "document"), prompts(settings, where), strict=True)
    )
    return query, document


def _prompt(prefix: Any, text: str, tokenizer: ForeignTokenizer, where: str) -> tuple[int, ...]:
    if not isinstance(prefix, str):
        raise InputError("a marker of queries or documents is not a string: fetch the model again", where)
    return tokenizer.marker(prefix) + tokenizer.prompt(text.removeprefix(prefix))


def _expansion(settings: dict[str, Any]) -> dict[str, Any] | None:
    """PyLate's settings as a query_expansion of sentence-transformers."""
    if settings.get("do_query_expansion") is False or not any(name in settings for name in _PYLATE):
        return None
    attend = settings.get("attend_to_expansion_tokens", settings.get("attend_to_mask_tokens"))
    length = settings.get("query_length") or _QUERY_TOKENS
    return {"strategy": "fixed", "attend": bool(attend), "length": length}


def _expanded(
    expansion: Any, own: dict[str, Any], longest: int, tokenizer: ForeignTokenizer, where: str
) -> dict[str, Any]:
    """Fields of queries that are padded with [MASK]."""
    if not isinstance(expansion, dict) or expansion.get("strategy") not in ("fixed", "min"):
        raise InputError("the query expansion is not supported: only the strategies fixed and min are", where)
    width = _length(expansion.get("length"), where)
    if width > longest:
        raise InputError(f"queries of {width} tokens are longer than the backbone's {longest}", where)
    fields = {
        "query_padding": width,
        "attend_padding": bool(expansion.get("attend")),
        "mask_id": tokenizer.expansion(expansion.get("token")),
    }
    if expansion["strategy"] == "fixed":
        fields["query_length"] = width
    elif own.get("query_length"):
        fields["query_length"] = min(max(_length(own["query_length"], where), width), longest)
    return fields


def _length(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 3:
        raise InputError(f"the length {str(value)[:40]} is not supported: it must be 3 or more", where)
    return value
