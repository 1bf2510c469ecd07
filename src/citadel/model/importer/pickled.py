"""Tensors of a pickled checkpoint, without running its code. The only file that may call torch.load.

Everything the pickle may name is listed here, and what is not a tensor or a plain value is replaced by an
empty object. The names are checked before torch reads the file with `weights_only`.
"""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from citadel.errors import InputError

MAX_PICKLE = 64 << 20  # bytes of the pickle itself; tensors lie beside it
_ADVICE = (
    "if you trust its author, run its code to convert it, with "
    "`python -c \"import torch; torch.save({'state_dict': torch.load('FILE', "
    "weights_only=False)['state_dict']}, 'clean.ckpt')\"` and name clean.ckpt"
)


class Ignored:
    """Stands in for an object of a class that is not needed."""

    def __new__(cls, *args: object) -> Ignored:
        return super().__new__(cls)

    def __init__(self, *args: object) -> None:
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


_TENSORS = {
    "collections.OrderedDict",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_parameter",
    *(
        f"torch.{kind}Storage"
        for kind in ("Float", "Half", "BFloat16", "Double", "Long", "Int", "Bool", "Byte")
    ),
}
# Settings and callbacks that Lightning and Hydra put beside the weights.
IGNORED = {
    "builtins": "bool dict float int list object str tuple",
    "__builtin__": "bool dict float int list object str tuple unicode",
    "typing": "Any",
    "omegaconf.dictconfig": "DictConfig",
    "omegaconf.listconfig": "ListConfig",
    "omegaconf.base": "ContainerMetadata Metadata SCMode",
    "omegaconf.nodes": "AnyNode BooleanNode FloatNode IntegerNode StringNode",
    "pytorch_lightning.callbacks.model_checkpoint": "ModelCheckpoint",
    "pytorch_lightning.utilities.parsing": "AttributeDict",
}
_STUBS = {
    f"{module}.{name}": type(name, (Ignored,), {})
    for module, names in IGNORED.items()
    for name in names.split()
}


def read_pickled(path: Path) -> dict[str, Any]:
    """The dictionary of a `.ckpt` or `.pt` file; settings in it are plain values or `Ignored`."""
    where = str(path)
    _check_archive(path)
    try:
        with torch.serialization.safe_globals([(stub, name) for name, stub in _STUBS.items()]):
            data = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except MemoryError:
        raise
    except Exception as error:  # a damaged pickle raises whatever its opcodes run into
        raise _refused(f"cannot be read ({_first_line(error)})", where) from None
    if not isinstance(data, dict):
        raise _refused("holds no dictionary", where)
    return data


def read_state(data: Any, where: str) -> dict[str, Tensor]:
    """The tensors of a state_dict, each checked to lie in the file as a whole."""
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise _refused("has no state_dict of tensors", where)
    return {name: _whole(name, tensor, where) for name, tensor in data.items()}


def plain(value: Any) -> Any:
    """The value of a setting, within one or two nodes of a configuration; None for anything else."""
    for _ in range(2):
        if isinstance(value, Ignored):
            value = value.state.get("_val") if isinstance(value.state, dict) else None
    return value if isinstance(value, bool | int | float | str) else None


def _check_archive(path: Path) -> None:
    """Raise unless the file is an archive of torch, stored without compression, with known names only."""
    where = str(path)
    if not path.is_file():
        raise InputError("it is not a regular file: name a checkpoint", where)
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            pickles = [entry for entry in entries if entry.filename.endswith(".pkl")]
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise _refused("is compressed", where)
            if len(pickles) != 1 or not pickles[0].filename.endswith("/data.pkl"):
                raise _refused("is not one checkpoint of torch", where)
            if pickles[0].file_size > MAX_PICKLE:
                raise _refused(f"has a pickle of more than {MAX_PICKLE >> 20} MB", where)
            contents = archive.read(pickles[0])
    except (zipfile.BadZipFile, OSError, NotImplementedError, EOFError, RuntimeError, ValueError) as error:
        raise _refused(f"is no archive of torch ({_first_line(error)})", where) from None
    _check_names(contents, where)


def _check_names(contents: bytes, where: str) -> None:
    """Raise if the pickle names anything that is not listed above; nothing is run."""
    known = _TENSORS | _STUBS.keys()
    try:
        for operation, argument, _ in pickletools.genops(contents):
            if operation.name in ("STACK_GLOBAL", "INST", "OBJ", "EXT1", "EXT2", "EXT4", "NEWOBJ_EX"):
                raise _refused(f"uses the operation {operation.name}", where)
            if operation.name == "GLOBAL":
                named = str(argument).replace(" ", ".")
                if named not in known:
                    raise _refused(f"names {named[:80]!r}, which could run code", where)
    except InputError:
        raise
    except Exception as error:  # malformed opcodes
        raise _refused(f"has a damaged pickle ({_first_line(error)})", where) from None


def _whole(name: str, tensor: Any, where: str) -> Tensor:
    """A tensor as fp32; one that claims more elements than are stored is an error."""
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise _refused(f"holds something other than tensors ({name[:60]!r})", where)
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise _refused(f"has a tensor larger than the file ({name[:60]!r})", where)
    return tensor.detach().float().contiguous()


def _refused(reason: str, where: str) -> InputError:
    return InputError(
        f"the pickled checkpoint is refused: it {reason}; {_ADVICE.replace('FILE', where)}", where
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:160]
