"""The GPU engine: an index on one device, or split by documents over several."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.errors import UsageError
from citadel.index.snapshot import Snapshot
from citadel.search.gpu.device import device_errors, parse_device
from citadel.search.gpu.device_engine import DeviceEngine
from citadel.search.gpu.device_index import load_device_index, shard_borders
from citadel.search.plan import EXACT_BELOW, Options, Plan, TermStatistics
from citadel.search.topk import best
from citadel.types import Scored

_NO_BM25 = "a GPU searches vectors and this index holds words (bm25): use --device cpu"


class FilteredEngines:
    """The engines of a filter, one per device."""

    def __init__(self, engines: list[DeviceEngine]) -> None:
        self.engines = engines

    def __len__(self) -> int:
        return sum(engine.live for engine in self.engines)


class GpuEngine:
    """Searches a snapshot on a GPU, or with `cuda:0,cuda:1` on several, each holding a range of documents.

    Several GPUs return what one returns, except that `rerank` takes its candidates from each of them."""

    def __init__(
        self, snapshot: Snapshot, floor: bool, device: str = "cuda", width: int = 0, memory: int | None = None
    ) -> None:
        if snapshot.settings.router == "bm25":
            raise UsageError(_NO_BM25)
        where, devices = snapshot.storage.location, [parse_device(name) for name in device.split(",")]
        self.engines: list[DeviceEngine] = []
        self._where, self._passages = where, snapshot.live_passages
        borders = shard_borders(int(snapshot.passage_bases[-1]), len(devices))
        for shard, target in enumerate(devices):
            with device_errors(where):
                index = load_device_index(snapshot, target, width, borders[shard : shard + 2], memory)
            self.engines.append(DeviceEngine(index, floor, where))

    def prepare(self, plan: Plan) -> Plan:
        """Return the plan: each device looks up its own lists."""
        return plan

    def prepare_terms(self, terms: list[bytes], repeats: list[int], statistics: TermStatistics) -> Plan:
        """Raise UsageError: bm25 runs on the CPU only."""
        raise UsageError(_NO_BM25)

    def prepare_filter(self, masks: Sequence[NDArray[np.bool_]]) -> FilteredEngines:
        """Engines over the same lists and vectors, for which other documents are as if deleted."""
        allowed = np.concatenate([np.zeros(0, bool), *masks])
        with device_errors(self._where):
            return FilteredEngines([engine.restricted(allowed) for engine in self.engines])

    def search(
        self, query: Plan, options: Options, cancel: Any = None, allowed: FilteredEngines | None = None
    ) -> Scored:
        """The best k documents of one query."""
        return self.search_batch([query], options, cancel, allowed)[0]

    def search_batch(
        self,
        queries: Sequence[Plan],
        options: Options,
        cancel: Any = None,
        allowed: FilteredEngines | None = None,
    ) -> list[Scored]:
        """The best k documents of each query; a filtered search scores all allowed documents exactly."""
        engines = self.engines
        if options.semantic in ("graph", "auto"):  # a GPU has no graph
            options = options._replace(semantic="exact" if self._passages < EXACT_BELOW else "rerank")
        if allowed is not None:
            engines = allowed.engines
            options = options._replace(semantic="exact" if options.semantic == "rerank" else options.semantic)
        if len(engines) == 1:
            return engines[0].search_batch(queries, options, cancel)
        with ThreadPoolExecutor(len(engines), "citadel-gpu") as pool:
            shards = list(pool.map(lambda engine: engine.search_batch(queries, options, cancel), engines))
        return [_merged(parts, options.k) for parts in zip(*shards, strict=True)]


def _merged(parts: Sequence[Scored], k: int) -> Scored:
    """The best k of the results of all shards."""
    numbers, scores = (np.concatenate(column) for column in list(zip(*parts, strict=True))[:2])
    top = best(numbers, scores, k)
    return Scored(top.numbers, top.scores, sum(part.dot_products for part in parts))
