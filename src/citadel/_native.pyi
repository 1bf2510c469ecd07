"""The native search engine, written in C++ under native/."""

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
    """Damaged data in a section; the message is 'file\\tsection\\tproblem'."""

class CancelledError(Exception):
    """The cancel flag was set while a search ran."""

class ReadError(Exception):
    """An I/O error while reading a mapped file; the message is the file's name."""

def watch_mapping(mapped: mmap.mmap, descriptor: int) -> int:
    """Register a mapped file and return its slot, or -1.

    Pages that cannot be read then yield zeros instead of killing the process with SIGBUS."""

def unwatch_mapping(slot: int) -> None:
    """Unregister a mapping; call this before the bytes are unmapped."""

def mapping_state(slot: int, exact: bool = True) -> int:
    """Return 0 if the mapping is whole, 1 if the file became shorter, 2 if a read failed.

    Unless `exact`, a length checked within the last 10 ms is not checked again."""

def instruction_sets() -> list[str]:
    """The sets supported by this machine, slowest first: 'portable', 'avx2', 'avx512vnni'."""

def instruction_set() -> str:
    """The set in use: the fastest, or the one named by CITADEL_ISA."""

def use_instruction_set(name: str) -> None:
    """Switch the whole process to a set (for tests); ValueError if the machine lacks it."""

def crc32c(data: U8 | bytes | memoryview, value: int = 0) -> int: ...
def crc32c_blocks(data: U8 | bytes | memoryview, block: int) -> U32:
    """One CRC-32C per block of `block` bytes; the last block may be shorter."""

def plan_rows(
    keys: U32,
    weights: F32,
    vectors: F32 | None,
    semantic: F32 | None,
    dimension: int,
    semantic_dimension: int,
) -> tuple[U32, F32, F32 | None] | None:
    """Keys, weights and weighted vectors sorted by key, without those of weight 0.

    None if the shapes do not fit the dimensions or a number is not finite; TypeError for other types."""

def first_of_each(values: I64, limit: int) -> I64:
    """Positions of the first entry of each distinct value, at most `limit`, ascending."""

def read_ids(offsets: U64, octets: U8, numbers: I64) -> list[str]:
    """The strings octets[offsets[number]:offsets[number + 1]]; IndexError if one lies outside."""

def sort_by_key(keys: U32) -> U32:
    """Stable argsort."""

def pack(values: U32, starts: U64) -> tuple[U32, U64, U8]:
    """Pack lists of non-decreasing document numbers in blocks of 128, each list separately.

    Returns (first document of each block [B], offset | bits << 56 of each block [B + 1], packed deltas)."""

def pack_counts(values: U32, starts: U64) -> tuple[U64, U8]:
    """Pack term counts, stored as count - 1, in the same way: (offset | bits << 56 [B + 1], packed)."""

def quantize_int8(vectors: F32, tries: int = 1) -> tuple[NDArray[np.int8], F16]:
    """Codes [P, d] and one fp16 scale per vector [P]."""

def rotate(vectors: F32) -> F32:
    """Rows [n, d] by a Hadamard matrix, in blocks of the largest power of two that divides d."""

def trellis_codes(rows: F32, values: F32, bits: int) -> U8:
    """Codes [n, d] with the least squared error along a trellis of 64 values."""

def pq_assign(vectors: F32, centroids: F32) -> U8:
    """The nearest of 256 centroids for each sub-vector: [P, d], [S, 256, d/S] → [P, S]; ties to the lower."""

class Cancel:
    """A cancellation flag: one thread sets it, a running search polls it."""
    def __init__(self) -> None: ...
    def set(self) -> None: ...
    def is_set(self) -> bool: ...

class Codebook:
    def __init__(self, centroids: F32, scale_keys: U32, key_scales: F32, global_scale: float) -> None:
        """centroids [S, 256, d/S]; scale_keys sorted [m], key_scales [m]."""

class Router:
    """An int8 key table that is multiplied with uint8 token states."""

    def __init__(self, table: NDArray[np.int8], scales: F32, biases: F32, step: float, zero: int) -> None:
        """table [V, h], scales and biases [V]; a state is (byte - zero) · step. ValueError if not finite."""

    def best(self, states: U8, max_keys: int) -> tuple[I64, F32]:
        """The best keys by z and their φ(z), [n, h] → [n, max_keys] each, best first, ties by lower key."""

    def set_bounds(
        self,
        transform: NDArray[np.int8],
        means: F32,
        factors: F32,
        units: F32,
        codes: NDArray[np.int8],
        thresholds: NDArray[np.int32],
    ) -> None:
        """Prepare `best_above`; no other thread may use that. See router.hpp."""

    def best_above(self, states: U8, max_keys: int) -> tuple[I64, F32]:
        """Like `best`, but keys with z up to the floor of the bounds may be missing (key 0, weight 0)."""

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
        """kind: vectors, centroid, sparse, bm25 or none. A section is (name, bytes, CRC32C per 1 MiB).

        `deleted` is a bitmap, bit n & 7 of byte n >> 3. Sizes are checked here, contents on first access."""

BUILD_LINKS: int
"""Links of a row while a graph is built."""

def nibble_row_bytes(dimension: int) -> int:
    """Bytes of a graph's row: a header of 12 bytes and 4-bit codes."""

def graph_row_bytes(dimension: int) -> int:
    """Bytes of a row in a graph file: those of `nibble_row_bytes` and a signature, to whole 64 bytes."""

SIGNATURE_BYTES: int
"""Bytes of the signature of a row's lists."""

def sign_documents(documents: I64, lists: U32, out: U8) -> None:
    """Add lists[i] to the signature out[documents[i]] for each i; out is [N, SIGNATURE_BYTES]."""

def scatter_postings(documents: I64, first: int, cursors: U64, out: U32) -> None:
    """Write posting first + i to out[cursors[documents[i]]++] for each i."""

class Graph:
    def __init__(
        self,
        name: str,
        rows: int,
        dimension: int,
        postings: int,
        links: int,
        lists: int,
        seeds: int,
        sections: Sequence[tuple[str, U8, U32]],
    ) -> None:
        """The graph of a segment. Sizes are checked here, contents on access."""

class GraphBuilder:
    """Inserts rows in batches, in their order; the result does not depend on the number of threads."""

    def __init__(
        self,
        dimension: int,
        nibbles: U8,
        codes: NDArray[np.int8],
        scales: F32,
        sums: NDArray[np.int32],
        norms: F32,
        links: U32,
        links_per_row: int = 32,
        width: int = 64,
        reach: float = 1.2,
    ) -> None:
        """Fills nibbles [N, bytes per row], codes [N, d rounded up to 128], links [N, BUILD_LINKS]."""

    def put(self, rows: U32, vectors: F32, dimension: int) -> None:
        """Store the centred vectors of some rows [n, d]."""

    def adopt(self, links: U32, new_rows: U32, threads: int, cancel: Cancel | None = None) -> None:
        """Begin with the links [n, l] of another graph, whose row i becomes new_rows[i] or is dropped."""

    @property
    def inserted(self) -> int: ...
    def insert_batch(self, threads: int, cancel: Cancel | None = None) -> None: ...
    def finish(self, threads: int, cancel: Cancel | None = None) -> None:
        """Prune the links of all rows to their final number."""

    def entries(self) -> U32: ...
    def layout(self) -> U32:
        """All rows in the order of a breadth-first search from the entries."""

class Query:
    def __init__(self, lists: I64, weights: F32, vectors: F32 | None, semantic: F32 | None) -> None:
        """lists [segments, n]: the list that each query token reads in each segment, or -1.

        Tokens that read the same list are adjacent. weights [n] are for sparse and bm25, vectors
        [n, d] are w·v."""

class Filter:
    """Documents that a search may return; made by `Snapshot.filter`."""

    def __len__(self) -> int:
        """The number of allowed documents."""

class Snapshot:
    def __init__(
        self,
        segments: Sequence[Segment],
        floor: bool,
        norm_base: float,
        norm_slope: float,
        graphs: Sequence[Graph | None] | None = None,
    ) -> None: ...
    def filter(self, bitmaps: Sequence[U8]) -> Filter:
        """Allow the documents of these bitmaps, one per segment, unless deleted; bit n & 7 of byte n >> 3."""

    def find_keys(self, keys: U32) -> I64:
        """The list of each key in each segment: [segments, n], -1 if absent."""

    def find_terms(self, terms: Sequence[bytes]) -> I64:
        """The same for the terms of a bm25 index."""

    def plan_terms(self, terms: list[bytes], repeats: list[int], documents: int) -> Query:
        """A bm25 query in one call; df is the total length of a term's lists, deleted documents included."""

    def list_lengths(self, lists: I64) -> I64:
        """The length of each list [segments, n]; 0 for -1."""

    def search(
        self,
        query: Query,
        k: int,
        semantic: str = "off",
        candidates: int = 1000,
        probes: int = 1000,
        weight_floor: int = 0,
        effort: int = 0,
        threads: int = 1,
        cancel: Cancel | None = None,
        filter: Filter | None = None,
    ) -> tuple[I64, F32, int]:
        """(global document numbers, scores, number of dot products), best first, ties by lower number."""

    def search_timed(
        self,
        query: Query,
        k: int,
        semantic: str = "off",
        candidates: int = 1000,
        probes: int = 1000,
        weight_floor: int = 0,
        effort: int = 0,
        filter: Filter | None = None,
    ) -> tuple[tuple[I64, F32, int], NDArray[np.float64]]:
        """The result of `search` on one thread, and the nanoseconds spent per stage.

        Stages: planning, token retrieval (unpacking and dot products), accumulation, semantic scoring,
        sorting."""

    def search_batch(
        self,
        queries: Sequence[Query],
        k: int,
        semantic: str = "off",
        candidates: int = 1000,
        probes: int = 1000,
        weight_floor: int = 0,
        effort: int = 0,
        threads: int = 1,
        cancel: Cancel | None = None,
        filter: Filter | None = None,
    ) -> list[tuple[I64, F32, int]]: ...

class CentroidBook:
    def __init__(
        self,
        codes: NDArray[np.int8],
        scales: NDArray[np.uint16],
        buckets: NDArray[np.int8],
        bucket_scale: float,
        step: float,
    ) -> None:
        """codes [K, d], scales [K] as the bits of fp16, buckets [2^b, 1] or of a trellis [2^b, 2^(6 − b)]."""

class NearestCentroids:
    """Searches the nearest of many centroids in the groups nearest to a vector, by int8 products."""

    def __init__(
        self,
        codes: NDArray[np.int8],
        scales: NDArray[np.uint16],
        heads: NDArray[np.int8],
        head_scales: NDArray[np.uint16],
        starts: U32,
        members: U32,
        probes: int,
    ) -> None:
        """codes [K, d] and scales [K] as the bits of fp16; the same of the groups' heads [G].

        Group g has the centroids members[starts[g] … starts[g + 1] − 1], ascending."""

    def nearest(self, vectors: F32) -> U32:
        """The nearest centroid of each vector [n]; ties go to the lower one."""

class TokenQuery:
    """The vectors [n, d] of a query's tokens and their products with the centroids."""

    def __init__(self, vectors: F32, book: CentroidBook | None) -> None: ...
    def products(self) -> F32:
        """[n, K]"""

    def probes(self, nprobe: int) -> U32:
        """The centroids of the largest products, best first, ties by lower number [n, nprobe]."""

def search_tokens(
    snapshot: Snapshot,
    vectors: F32,
    book: CentroidBook | None,
    k: int,
    exact: bool,
    candidates: int,
    nprobe: int,
    threads: int = 1,
    cancel: Cancel | None = None,
    filter: Filter | None = None,
) -> tuple[I64, F32, int]:
    """The best documents of centroid segments by MaxSim: numbers, scores, number of dot products."""

def search_tokens_batch(
    snapshot: Snapshot,
    queries: Sequence[F32],
    book: CentroidBook | None,
    k: int,
    exact: bool,
    candidates: int,
    nprobe: int,
    threads: int = 1,
    cancel: Cancel | None = None,
    filter: Filter | None = None,
) -> list[tuple[I64, F32, int]]: ...
def token_candidates(
    snapshot: Snapshot, query: TokenQuery, candidates: int, nprobe: int, filter: Filter | None = None
) -> U64:
    """The documents that a search with these options scores, ascending."""
