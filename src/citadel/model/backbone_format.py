"""Write a backbone as a checkpoint of transformers: the inverse of `load.py`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from citadel.encode.config import BackboneConfig, ModelConfig
from citadel.errors import InputError
from citadel.model.names import FAMILIES, Family

_CLASSES = {"bert": "Bert", "roberta": "Roberta", "mpnet": "MPNet", "modernbert": "ModernBert"}
_TYPES = 2  # rows of BERT's table of token types


def backbone_tensors(
    shape: BackboneConfig, state: dict[str, Tensor], head: bool, where: str
) -> dict[str, Tensor]:
    """Tensors under the names of transformers, with the MLM head or without."""
    family = FAMILIES[family_name(shape, where)]
    names = dict(family.embeddings | family.final)
    has_types = names.pop("embeddings.type", None)
    tensors: dict[str, Tensor] = {}
    for ours, theirs in names.items():
        _put(tensors, state, ours, theirs)
    for layer in range(shape.layers):
        for ours, named in family.layer.items():
            _put(tensors, state, f"layers.{layer}.{ours}", named, layer)
    prefix = family.prefix if head else ""
    whole = {prefix + name: tensor for name, tensor in tensors.items()}
    if has_types:  # folded into the positions
        rows = 1 if family is FAMILIES["roberta"] else _TYPES
        whole[f"{prefix}{has_types}"] = torch.zeros(rows, shape.hidden)
    if head:
        for ours, theirs in family.router.items():
            _put(whole, state, ours, theirs)
    return whole


def backbone_config(config: ModelConfig, head: bool, where: str) -> dict[str, Any]:
    """The config.json of transformers."""
    shape = config.backbone
    name = family_name(shape, where)
    family: Family = FAMILIES[name]
    if shape.position_offset and config.pad_id != shape.position_offset - 1:
        raise InputError(
            f"positions begin at {shape.position_offset}, so [PAD] must be token "
            f"{shape.position_offset - 1}, not {config.pad_id}",
            where,
        )
    values: dict[str, Any] = {theirs: getattr(shape, ours) for ours, theirs in family.shape.items()}
    values |= {
        "model_type": name,
        "architectures": [f"{_CLASSES[name]}{'ForMaskedLM' if head else 'Model'}"],
        "pad_token_id": config.pad_id,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }
    if name in ("bert", "roberta"):
        values["type_vocab_size"] = 1 if name == "roberta" else _TYPES
    return values | (_modern(config) if name == "modernbert" else {})


def family_name(shape: BackboneConfig, where: str) -> str:
    """The family that a shape is written as: DistilBERT and ELECTRA are BERT."""
    if shape.architecture != "bert":
        return shape.architecture
    if shape.position_offset not in (0, 2):
        raise InputError(f"positions that begin at {shape.position_offset} cannot be exported", where)
    return "roberta" if shape.position_offset else "bert"


def _modern(config: ModelConfig) -> dict[str, Any]:
    shape = config.backbone
    biases = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias", "decoder_bias")
    return {
        **dict.fromkeys(biases, True),
        "global_rope_theta": shape.rotary_base,
        "local_rope_theta": shape.local_rotary_base or shape.rotary_base,
        "local_attention": 2 * shape.local_window or 2,
        "global_attn_every_n_layers": shape.full_every,
        "cls_token_id": config.cls_id,
        "sep_token_id": config.sep_id,
        "bos_token_id": config.cls_id,
        "eos_token_id": config.sep_id,
    }


def _put(
    tensors: dict[str, Tensor],
    state: dict[str, Tensor],
    ours: str,
    theirs: str | tuple[str, str, str],
    layer: int = 0,
) -> None:
    """Copy a tensor, or the weight and bias of a module; a joined matrix is split by row."""
    targets = [name.format(i=layer) for name in ((theirs,) if isinstance(theirs, str) else theirs)]
    if ours in state:
        name = targets[0] if targets[0].endswith((".weight", ".bias")) else f"{targets[0]}.weight"
        tensors[name] = state[ours].contiguous()
        return
    for part in ("weight", "bias"):
        whole = state.get(f"{ours}.{part}")
        if whole is not None:  # ModernBERT's first layer has no norm
            for name, piece in zip(targets, whole.chunk(len(targets)), strict=True):
                tensors[f"{name}.{part}"] = piece.contiguous()
