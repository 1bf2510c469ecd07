"""Read and write checkpoint folders: `model.safetensors`, `config.json`, `tokenizer.json`."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from citadel.encode.config import ModelConfig, load_config
from citadel.errors import InputError
from citadel.model.citadel import Citadel
from citadel.model.load import Pretrained, load_pretrained
from citadel.model.safety import refuse_pickles

WEIGHTS, TOKENIZER, ONNX = "model.safetensors", "tokenizer.json", "model.onnx"


def new_model(config: ModelConfig, backbone: str | Pretrained) -> tuple[Citadel, Path]:
    """Build a model on a public backbone; return it with the backbone's folder.

    Heads are initialised afresh, except for the router if the backbone has an MLM head. The backbone's shape
    replaces the one in `config`; lengths are limited to its positions.
    """
    pretrained = backbone if isinstance(backbone, Pretrained) else load_pretrained(backbone)
    longest = pretrained.config.longest
    config = replace(
        config,
        backbone=pretrained.config,
        query_length=min(config.query_length, longest),
        document_length=min(config.document_length, longest),
    )
    model = Citadel(config)
    tensors = {
        name: tensor
        for name, tensor in pretrained.tensors.items()
        if model.router is not None or "router" not in name
    }
    fill(model, tensors, str(pretrained.folder), fresh=("token.", "semantic.", "offset.", "router."))
    return model, pretrained.folder


def load_model(folder: str | os.PathLike[str]) -> Citadel:
    """Load the model of a checkpoint folder, or of an exported folder from the weights in its ONNX file."""
    config, path = load_config(folder), Path(folder)
    model = Citadel(config)
    if (path / WEIGHTS).is_file():
        fill(model, read_tensors(path / WEIGHTS), str(path / WEIGHTS))
    elif (path / ONNX).is_file():
        from citadel.model.onnx_weights import read_weights

        fill(
            model,
            {name: torch.from_numpy(array) for name, array in read_weights(path / ONNX).items()},
            str(path / ONNX),
        )
    else:
        refuse_pickles(path)
        raise InputError(f"the model has neither {WEIGHTS} nor {ONNX}: train or export it again", str(path))
    return model.eval()


def save_model(model: Citadel, folder: str | os.PathLike[str], tokenizer: str | os.PathLike[str]) -> None:
    """Write the files of a checkpoint folder; `tokenizer` is the tokenizer.json to copy."""
    os.makedirs(folder, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, os.path.join(folder, WEIGHTS))
    model.config.save(folder)
    target = os.path.join(folder, TOKENIZER)
    if not os.path.exists(target) or not os.path.samefile(tokenizer, target):
        shutil.copyfile(tokenizer, target)


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file to the CPU."""
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"cannot be read as safetensors ({error}): take another checkpoint", str(file)
        ) from None


def fill(model: Citadel, tensors: dict[str, Tensor], where: str, fresh: tuple[str, ...] = ()) -> None:
    """Copy tensors into a model; missing (except `fresh`), unknown and misshapen tensors are errors."""
    wanted = model.state_dict()
    for name in sorted(set(tensors) - set(wanted)):
        raise InputError(
            f"the tensor {name} is not part of this model: its config.json belongs to another model", where
        )
    for name, target in wanted.items():
        if name not in tensors:
            if name.startswith(fresh) and fresh:
                continue
            raise InputError(f"the tensor {name} is missing: take another checkpoint", where)
        if target.shape != tensors[name].shape:
            raise InputError(
                f"the tensor {name} has shape {tuple(tensors[name].shape)}, not {tuple(target.shape)}", where
            )
        with torch.no_grad():
            target.copy_(tensors[name])
