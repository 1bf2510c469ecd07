"""The native engine: bytes and floats, nothing of Python objects. Written in C++ under native/."""

import mmap
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
F16 = NDArray[np.float16]
F32 = NDArray[np.float32]

class CorruptError(Exception):
    """A section that cannot be trusted; the text is 'file\\tsection\\tproblem'."""

class CancelledError(Exception):
    """The cancel flag was set while a search ran."""

class ReadError(Exception):
    """The disk failed to read a mapped file; the text is its name."""

def watch_mapping(mapped: mmap.mmap, descriptor: int) -> int:
    """Let reads of a mapped file that cannot be read give zeros instead of ending the process; gives a slot, or -1."""

def unwatch_mapping(slot: int) -> None:
    """Must be called before the bytes are unmapped."""

def mapping_state(slot: int, exact: bool = True) -> int:
    """0: whole; 1: the file is shorter than it was; 2: some of it could not be read.

    Unless `exact`, a length that was looked at in the last 10 ms is not looked at again."""

def instruction_sets() -> list[str]:
    """Those this machine can run, slowest first: 'portable', 'avx2', 'avx512vnni'."""

def instruction_set() -> str:
    """The one in use: the fastest, or what CITADEL_ISA names."""

def use_instruction_set(name: str) -> None:
    """Switch for the whole process (tests); ValueError when the machine lacks it."""

def crc32c(data: U8 | bytes | memoryview, value: int = 0) -> int: ...
def crc32c_blocks(data: U8 | bytes | memoryview, block: int) -> U32:
    """One CRC32C for each `block` bytes, the last one shorter."""

def sort_by_key(keys: U32) -> U32:
    """The stable order that sorts `keys`."""

def pack(values: U32, starts: U64) -> tuple[U32, U64, U8]:
    """Pack lists of non-decreasing document numbers in blocks of 128, each list on its own.

    Gives (first document of each block [B], offset | bits << 56 of each block [B + 1], packed deltas)."""

def pack_counts(values: U32, starts: U64) -> tuple[U64, U8]:
    """Pack `values - 1` of term counts the same way: (offset | bits << 56 [B + 1], packed)."""

def quantize_int8(vectors: F32) -> tuple[NDArray[np.int8], F16]:
    """Codes [P, d] and one fp16 scale a vector [P]."""

def pq_assign(vectors: F32, centroids: F32) -> U8:
    """The nearest of 256 centroids for each sub-vector: [P, d], [S, 256, d/S] → [P, S]; ties to the lower."""

class Cancel:
    """A flag one thread sets and a running search polls."""
    def __init__(self) -> None: ...
    def set(self) -> None: ...
    def is_set(self) -> bool: ...

class Codebook:
    def __init__(self, centroids: F32, scale_keys: U32, key_scales: F32, global_scale: float) -> None:
        """centroids [S, 256, d/S]; scale_keys sorted [m], key_scales [m]."""

class Router:
    """A table of keys of signed bytes, with which states of unsigned bytes are multiplied."""

    def __init__(self, table: NDArray[np.int8], scales: F32, biases: F32, step: float, zero: int) -> None:
        """table [V, h], scales and biases [V]; a state's number is (byte - zero) · step. ValueError when not finite."""

    def best(self, states: U8, most: int) -> tuple[I64, F32]:
        """The keys of the largest z and their φ(z), [n, h] → [n, most] each, best first; equal ones by lower key."""

class Segment:
    def __init__(
        self,
        name: str,
        documents: int,
        kind: str,
        dimension: int,
        codec: str,
        semantic_dimension: int,
        semantic_codec: str,
        sections: Sequence[tuple[str, U8, U32]],
        deleted: U8 | None,
        codebook: Codebook | None,
    ) -> None:
        """kind: 'vectors', 'sparse', 'bm25' or 'none'. A section is (name, bytes, CRC32C per 1 MiB block).

        `deleted` is a bitmap, bit n & 7 of byte n >> 3. Sizes are checked here, contents at first touch."""

class Query:
    def __init__(self, lists: I64, weights: F32, vectors: F32 | None, semantic: F32 | None) -> None:
        """lists [segments, n]: which list of each segment query token i reads, -1 for none.

        Tokens of one list stand together. weights [n] serve sparse and bm25; vectors [n, d] are w·v."""

class Snapshot:
    def __init__(self, segments: Sequence[Segment], floor: bool, norm_base: float, norm_slope: float) -> None: ...
    def find_keys(self, keys: U32) -> I64:
        """The list of each key in each segment: [segments, n], -1 where absent."""

    def find_terms(self, terms: Sequence[bytes]) -> I64:
        """The same for the terms of a bm25 index."""

    def plan_terms(self, terms: list[bytes], repeats: list[int], documents: int) -> Query:
        """A bm25 query in one call; df is the length of a term's lists, so only where nothing is deleted."""

    def list_lengths(self, lists: I64) -> I64:
        """Postings of each list [segments, n]; 0 for -1."""

    def search(
        self,
        query: Query,
        k: int,
        semantic: str = "off",
        candidates: int = 1000,
        probes: int = 1000,
        weight_floor: int = 0,
        threads: int = 1,
        cancel: Cancel | None = None,
    ) -> tuple[I64, F32, int]:
        """(global document numbers, scores, dot products), best first; equal scores by lower number."""

    def search_timed(
        self,
        query: Query,
        k: int,
        semantic: str = "off",
        candidates: int = 1000,
        probes: int = 1000,
        weight_floor: int = 0,
    ) -> tuple[tuple[I64, F32, int], NDArray[np.float64]]:
        """What `search` gives on one thread, and the nanoseconds of its stages.

        The stages: planning, token retrieval (unpacking and dot products), accumulating, semantic scores, sorting."""

    def search_batch(
        self,
        queries: Sequence[Query],
        k: int,
        semantic: str = "off",
        candidates: int = 1000,
        probes: int = 1000,
        weight_floor: int = 0,
        threads: int = 1,
        cancel: Cancel | None = None,
    ) -> list[tuple[I64, F32, int]]: ...
