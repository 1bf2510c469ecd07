"""The few instructions that the kernels have as PTX, for Triton's interpreter, which has none: shared memory with them.

Addresses are the kernels' own: a place outside of the room, or one that is no multiple of what is read there, fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from triton.runtime import interpreter

BASE = 4096  # where the room begins
Words = NDArray[Any]


class Results(list[Words]):
    """What an instruction gives."""

    def get_result(self, place: int) -> interpreter.TensorHandle:
        return interpreter.TensorHandle(self[place], DTYPES[self[place].dtype.name])


DTYPES = {kind: getattr(interpreter.tl, kind) for kind in ("int32", "int64", "float32")}


class Machine:
    """One program's shared memory."""

    def __init__(self) -> None:
        self.room = np.zeros(0, np.uint8)

    def asm(self, text: str, constraints: str, values: list[Any], *rest: Any) -> Results:
        """Do what an instruction says."""
        given = [np.asarray(value.data) for value in values]
        if room := re.search(r"\.shared \.align 16 \.b8 own\[(\d+)\]", text):
            self.room = np.full(int(room[1]), 0x7F, np.uint8)  # no number that a score is
            return Results([np.full(given[0].shape, BASE, np.int32)])
        for name, run in KNOWN.items():
            if name in text:
                return Results(run(self, *given))
        raise AssertionError(f"unknown instruction: {text}")

    def _at(self, address: Words, there: Words, kind: Any) -> Words:
        """The places of these addresses in the room, as elements of a kind."""
        size = np.dtype(kind).itemsize
        place: Words = np.where(there, address.astype(np.int64) - BASE, 0)
        assert (place % size == 0).all() and (place >= 0).all() and (place + size <= len(self.room)).all(), place
        found: Words = place // size
        return found

    def _load(self, address: Words, there: Words) -> list[Words]:
        found = self.room.view(np.float32)[self._at(address, there != 0, np.float32)]
        return [np.where(there != 0, found, np.float32(0))]

    def _store(self, address: Words, score: Words, there: Words) -> list[Words]:
        places = self._at(address, there != 0, np.float32)[there != 0]
        assert len(np.unique(places)) == len(places), "two lanes write to one place"
        self.room.view(np.float32)[places] = score[there != 0]
        return [address.astype(np.int32)]

    def _clear(self, address: Words) -> list[Words]:
        assert (address % 16 == 0).all()
        for step in range(4):
            places = self._at(address + 4 * step, np.ones_like(address, bool), np.float32)
            self.room.view(np.float32)[places] = -np.inf
        return [address.astype(np.int32)]

    def _note(self, address: Words, value: Words) -> list[Words]:
        self.room.view(np.int64)[self._at(address, np.ones_like(address, bool), np.int64)] = value
        return [address.astype(np.int32)]

    def _noted(self, address: Words) -> list[Words]:
        return [self.room.view(np.int64)[self._at(address, np.ones_like(address, bool), np.int64)]]

    def _fours(self, row: Words, asked: Words) -> list[Words]:
        one, other = (side.astype(np.int32)[..., None].view(np.int8).astype(np.int32) for side in (row, asked))
        return [(one * other).sum(-1, dtype=np.int32)]

    def _words(self, address: Words, there: Words) -> list[Words]:
        assert (address[there != 0] % 16 == 0).all()
        return [self._word(address + 4 * word, there != 0) for word in range(4)]

    def _word(self, address: Words, there: Words) -> Words:
        found: Words = interpreter._interpreter.load(
            address.astype(np.uint64), there, np.zeros(address.shape, np.int32), np.dtype(np.int32)
        )
        return found


KNOWN: dict[str, Callable[..., list[Words]]] = {
    "ld.global.nc.v4.b32": Machine._words, "dp4a.s32.s32": Machine._fours, "st.shared.v4.f32": Machine._clear,
    "ld.shared.f32": Machine._load, "st.shared.f32": Machine._store, "st.shared.b64": Machine._note,
    "ld.shared.b64": Machine._noted,
}  # fmt: skip


def understood() -> Any:
    """For a while, these instructions are understood."""
    return mock.patch.object(interpreter.InterpreterBuilder, "create_inline_asm", staticmethod(Machine().asm))
