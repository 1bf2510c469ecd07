"""Emulate the PTX instructions of the kernels in Triton's interpreter, with shared memory.

Accesses outside of the declared memory or without alignment fail."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from triton.runtime import interpreter

BASE = 4096  # address of the shared memory
Words = NDArray[Any]


class Results(list[Words]):
    """The results of an instruction."""

    def get_result(self, index: int) -> interpreter.TensorHandle:
        return interpreter.TensorHandle(self[index], DTYPES[self[index].dtype.name])


DTYPES = {kind: getattr(interpreter.tl, kind) for kind in ("int32", "int64", "float32")}


class Machine:
    """The shared memory of one program."""

    def __init__(self) -> None:
        self.memory = np.zeros(0, np.uint8)

    def asm(self, text: str, constraints: str, values: list[Any], *rest: Any) -> Results:
        """Execute an instruction."""
        given = [np.asarray(value.data) for value in values]
        if declared := re.search(r"\.shared \.align 16 \.b8 own\[(\d+)\]", text):
            self.memory = np.full(int(declared[1]), 0x7F, np.uint8)  # NaN, so that reads of unset scores show
            return Results([np.full(given[0].shape, BASE, np.int32)])
        for name, run in KNOWN.items():
            if name in text:
                return Results(run(self, *given))
        raise AssertionError(f"unknown instruction: {text}")

    def _at(self, address: Words, mask: Words, kind: Any) -> Words:
        """The elements of a dtype at these addresses."""
        size = np.dtype(kind).itemsize
        offset: Words = np.where(mask, address.astype(np.int64) - BASE, 0)
        assert (
            (offset % size == 0).all() and (offset >= 0).all() and (offset + size <= len(self.memory)).all()
        ), offset
        element: Words = offset // size
        return element

    def _load(self, address: Words, mask: Words) -> list[Words]:
        values = self.memory.view(np.float32)[self._at(address, mask != 0, np.float32)]
        return [np.where(mask != 0, values, np.float32(0))]

    def _store(self, address: Words, score: Words, mask: Words) -> list[Words]:
        offsets = self._at(address, mask != 0, np.float32)[mask != 0]
        assert len(np.unique(offsets)) == len(offsets), "two lanes write to one address"
        self.memory.view(np.float32)[offsets] = score[mask != 0]
        return [address.astype(np.int32)]

    def _clear(self, address: Words) -> list[Words]:
        assert (address % 16 == 0).all()
        for step in range(4):
            offsets = self._at(address + 4 * step, np.ones_like(address, bool), np.float32)
            self.memory.view(np.float32)[offsets] = -np.inf
        return [address.astype(np.int32)]

    def _store_table(self, address: Words, value: Words) -> list[Words]:
        self.memory.view(np.int64)[self._at(address, np.ones_like(address, bool), np.int64)] = value
        return [address.astype(np.int32)]

    def _load_table(self, address: Words) -> list[Words]:
        return [self.memory.view(np.int64)[self._at(address, np.ones_like(address, bool), np.int64)]]

    def _dot4(self, row: Words, query: Words) -> list[Words]:
        one, other = (
            side.astype(np.int32)[..., None].view(np.int8).astype(np.int32) for side in (row, query)
        )
        return [(one * other).sum(-1, dtype=np.int32)]

    def _load4(self, address: Words, mask: Words) -> list[Words]:
        assert (address[mask != 0] % 16 == 0).all()
        return [self._word(address + 4 * word, mask != 0) for word in range(4)]

    def _word(self, address: Words, mask: Words) -> Words:
        values: Words = interpreter._interpreter.load(
            address.astype(np.uint64), mask, np.zeros(address.shape, np.int32), np.dtype(np.int32)
        )
        return values


KNOWN: dict[str, Callable[..., list[Words]]] = {
    "ld.global.nc.v4.b32": Machine._load4, "dp4a.s32.s32": Machine._dot4, "st.shared.v4.f32": Machine._clear,
    "ld.shared.f32": Machine._load, "st.shared.f32": Machine._store, "st.shared.b64": Machine._store_table,
    "ld.shared.b64": Machine._load_table,
}  # fmt: skip


def emulated() -> Any:
    """Patch the interpreter to emulate these instructions."""
    return mock.patch.object(interpreter.InterpreterBuilder, "create_inline_asm", staticmethod(Machine().asm))
