"""sentence-transformers bi-encoders: Transformer, Pooling, then Dense and Normalize."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from citadel.encode.config import POOLINGS, ModelConfig
from citadel.errors import InputError
from citadel.model.importer.source import Dense, Module, project, read_dense
from citadel.model.importer.tokens import ForeignTokenizer, prompts
from citadel.model.load import Pretrained

_LEGACY = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}  # pooling_mode_…: true


@dataclass
class _Heads:
    """What follows the pooling."""

    denses: list[Dense]
    normalize_pooled: bool = False
    normalize_semantic: bool = False


def bi_encoder(
    modules: list[Module], settings: dict[str, Any], pretrained: Pretrained, tokenizer: ForeignTokenizer
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Fields of the config, and the tensors of the projection."""
    where = str(pretrained.folder)
    query, document = prompts(settings, where)
    if len(modules) < 2 or modules[1].kind != "Pooling":
        raise InputError("a bi-encoder without a Pooling module is not supported", where)
    pooling = _pooling(modules[1], bool(query or document))
    heads = _heads(modules[2:], where)
    if _is_cosine(settings, where):
        heads.normalize_semantic = True
    dense = project(heads.denses, pretrained.config.hidden, where)
    fields = {
        "pooling": pooling,
        "semantic_dimension": len(dense.weight),
        "semantic_activation": dense.activation,
        "normalize_pooled": heads.normalize_pooled,
        "normalize_semantic": heads.normalize_semantic,
        "query_prompt": tokenizer.prompt(query),
        "document_prompt": tokenizer.prompt(document),
        "token_dimension": 0,
    }
    return fields, {"semantic.weight": dense.weight, "semantic.bias": dense.bias}


def _pooling(module: Module, has_prompt: bool) -> str:
    config = module.config
    mode = config.get("pooling_mode")
    if mode is None:
        modes = [name.removeprefix("pooling_mode_") for name, on in config.items() if on is True]
        names = {theirs: ours for ours, theirs in _LEGACY.items()}
        active = [names.get(name, name) for name in modes if name != "include_prompt"] or ["mean"]
    else:
        active = [mode] if isinstance(mode, str) else [str(name) for name in mode]
    if len(active) != 1 or active[0] not in POOLINGS:
        raise InputError(
            f"the pooling {' + '.join(active)[:60]} is not supported: only one of {', '.join(POOLINGS)} is",
            str(module.folder),
        )
    if has_prompt and config.get("include_prompt") is False:
        raise InputError("pooling without the prompt's tokens is not supported", str(module.folder))
    return active[0]


def _heads(modules: list[Module], where: str) -> _Heads:
    heads = _Heads([])
    for module in modules:
        if module.kind == "Dense" and heads.normalize_semantic:
            raise InputError("a Dense module between two Normalize modules is not supported", where)
        if module.kind == "Dense":
            heads.denses.append(read_dense(module))
        elif module.kind == "Normalize" and heads.denses:
            heads.normalize_semantic = True
        elif module.kind == "Normalize":
            heads.normalize_pooled = True
        elif module.kind != "Dropout":
            raise InputError(
                f"the module {module.kind[:60]!r} is not supported: a bi-encoder may have Pooling, Dense, "
                "Dropout and Normalize",
                where,
            )
    return heads


def _is_cosine(settings: dict[str, Any], where: str) -> bool:
    """Whether scores are cosines, the default of sentence-transformers, rather than dot products."""
    name = settings.get("similarity_fn_name") or "cosine"
    if name not in ("cosine", "dot"):
        raise InputError(
            f"the similarity {str(name)[:40]!r} is not supported: only cosine and dot are", where
        )
    return bool(name == "cosine")


def defaults() -> ModelConfig:
    """The config before the fields above."""
    return ModelConfig("none", token_dimension=0)
