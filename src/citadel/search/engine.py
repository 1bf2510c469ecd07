"""The engine protocol, which the CPU, reference and GPU engines implement, and how to open one.

| engine | module | query | use |
| --- | --- | --- | --- |
| `native` | `search/cpu.py` | `_native.Query` | the default |
| `reference` | `search/reference.py` | plan and lists | numpy, defines the scores |
| `gpu` | `search/gpu/engine.py` | `Plan` | torch and Triton |

An index of the router `centroid` has engines of its own: `search/centroid.py`,
`search/centroid_reference.py` and `search/gpu/centroid.py`.

A `Searcher` plans a query (`search/plan.py`), prepares it once and searches it; an engine returns document
numbers and scores, which `search/hits.py` turns into hits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from citadel.errors import UsageError
from citadel.index.snapshot import Snapshot
from citadel.search.plan import Options, Plan, TermStatistics
from citadel.types import Scored

if TYPE_CHECKING:
    from citadel._native import Cancel

ENGINES = ("native", "reference", "gpu")
Query = TypeVar("Query")


class Engine(Protocol[Query]):
    """Searches one snapshot; `Query` is the engine's own prepared form of a query.

    All engines return the same documents and scores, highest score first, ties by lower number."""

    def prepare(self, plan: Plan, /) -> Query:
        """Look up what a plan needs in this snapshot."""
        ...

    def prepare_terms(self, terms: list[bytes], repeats: list[int], statistics: TermStatistics, /) -> Query:
        """Prepare a bm25 query from its distinct terms, in byte order, and their counts in the query."""
        ...

    def prepare_filter(self, masks: Sequence[NDArray[np.bool_]], /) -> Any:
        """The engine's form of a filter, from a mask per segment; its `len` counts the live documents."""
        ...

    def search(
        self, query: Query, options: Options, cancel: Cancel | None = None, allowed: Any = None, /
    ) -> Scored:
        """The best k documents of one query, of those that `allowed` from `prepare_filter` holds."""
        ...

    def search_batch(
        self, queries: Sequence[Query], options: Options, cancel: Cancel | None = None, allowed: Any = None, /
    ) -> list[Scored]:
        """The best k documents of each query."""
        ...


EngineOpener = Callable[[Snapshot, bool, tuple[float, float]], Engine[Any]]  # of floor and norm


class EngineOptions(NamedTuple):
    """Which engine to open, by name or with a function, and where it runs."""

    name: str | EngineOpener = "native"
    threads: int = 1
    device: str = "cpu"
    gpu_memory: int | None = None  # bytes; None: no limit


def open_engine(
    snapshot: Snapshot, floor: bool, norm: tuple[float, float], options: EngineOptions
) -> Engine[Any]:
    """Open an engine over a snapshot; `floor` and `norm` come from its router."""
    if callable(options.name):
        return options.name(snapshot, floor, norm)
    engine = _open(snapshot, floor, norm, options)
    if snapshot.is_ordered:
        return engine
    from citadel.search.position_order import PositionOrder

    return PositionOrder(engine, snapshot)


def _open(snapshot: Snapshot, floor: bool, norm: tuple[float, float], options: EngineOptions) -> Engine[Any]:
    if snapshot.settings.router == "centroid":
        return _centroid_engine(snapshot, options)
    if options.name == "gpu":
        return _gpu_engine(snapshot, floor, options.device, options.gpu_memory)
    if options.name == "reference":
        from citadel.search.reference import ReferenceEngine

        return ReferenceEngine(snapshot, floor, norm)
    from citadel.search.cpu import CpuEngine

    return CpuEngine(snapshot, floor, norm, options.threads)


def _centroid_engine(snapshot: Snapshot, options: EngineOptions) -> Engine[Any]:
    if options.name == "gpu":
        return _gpu_centroid_engine(snapshot, options.device)
    if options.name == "reference":
        from citadel.search.centroid_reference import CentroidReference

        return CentroidReference(snapshot)
    from citadel.search.centroid import CentroidEngine

    return CentroidEngine(snapshot, options.threads)


def _gpu_centroid_engine(snapshot: Snapshot, device: str) -> Engine[Any]:
    try:
        from citadel.search.gpu.centroid import GpuCentroidEngine
    except ImportError as error:
        raise _lacks_gpu_packages(error) from None
    return GpuCentroidEngine(snapshot, device)


def _lacks_gpu_packages(error: ImportError) -> UsageError:
    return UsageError(
        f"a GPU needs more packages ({error}): pip install 'citadel-ir[gpu]', or search with --device cpu"
    )


def _gpu_engine(snapshot: Snapshot, floor: bool, device: str, memory: int | None) -> Engine[Plan]:
    try:
        from citadel.search.gpu.engine import GpuEngine
    except ImportError as error:
        raise _lacks_gpu_packages(error) from None
    return GpuEngine(snapshot, floor, device, memory=memory)
