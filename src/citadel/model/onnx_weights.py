"""Read the weights of a `model.onnx`, fp32 or int8, under checkpoint names, so that torch can run them."""

from __future__ import annotations

import os

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from citadel.errors import InputError
from citadel.model.matrices import SCALE, dequantize
from citadel.types import Floats

_PARTS = ("embeddings.", "layers.", "token.", "semantic.", "offset.", "router.", "final_norm.", "query.")


def read_weights(file: str | os.PathLike[str]) -> dict[str, Floats]:
    """Every tensor of the model as fp32; int8 matrices are multiplied by their scales."""
    try:
        model = onnx.load(file, load_external_data=False)
        arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    except FileNotFoundError:
        raise InputError("no such file: name a folder made by `citadel export`", str(file)) from None
    except (DecodeError, OSError, ValueError, TypeError) as error:
        raise InputError(f"cannot be read as ONNX ({error}): export the model again", str(file)) from None
    return {
        name: dequantize(array, arrays[name + SCALE]) if name + SCALE in arrays else array.astype(np.float32)
        for name, array in arrays.items()
        if name.startswith(_PARTS) and not name.endswith(SCALE)
    }
