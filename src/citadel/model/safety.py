"""Reject pickled checkpoints, which could run code when read, and say how to convert them."""

from __future__ import annotations

import os
from collections.abc import Iterable

from citadel.errors import InputError

_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def refuse_pickles(folder: str | os.PathLike[str]) -> None:
    """Raise if a folder has pickled weights and no safetensors.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "pytorch_model.bin").write_bytes(b"")
    >>> refuse_pickles(folder)
    Traceback (most recent call last):
    citadel.errors.InputError: ...pytorch_model.bin: a pickled checkpoint can run code when read: ...
    """
    refuse_pickled(os.listdir(folder), os.fspath(folder))


def refuse_pickled(names: Iterable[str], where: str) -> None:
    """Raise if these file names include pickled weights and no safetensors."""
    names = sorted(names)
    if any(name.endswith(".safetensors") for name in names):
        return
    for name in names:
        if name.endswith(_PICKLED):
            raise InputError(
                "a pickled checkpoint can run code when read: convert it on a machine you trust with "
                "`AutoModel.from_pretrained(FOLDER).save_pretrained(OUT, safe_serialization=True)` "
                "and name OUT",
                os.path.join(where, name),
            )
