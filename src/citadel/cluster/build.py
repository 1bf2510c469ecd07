"""Build a sharded index on a Ray cluster.

The driver reads the corpus and cuts it into units; actors encode them straight to the shared folder; tasks
join the units of each shard; the root manifest comes last. Only texts travel through Ray. A rerun cuts the
same units and finds those that are finished.
"""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from citadel.cluster.encode_unit import UnitEncoder, is_finished
from citadel.cluster.encoder_pool import EncoderPool, count_encoders, lost, raise_cause
from citadel.cluster.job import WORK_PREFIX, Job
from citadel.cluster.join_units import JoinedShard, join_units
from citadel.cluster.units import Unit, cut_units
from citadel.errors import UsageError
from citadel.index.failures import resource_errors
from citadel.index.root_manifest import RootManifest, newest_root, root_generations, write_root
from citadel.index.shard import collect_shards, refuse_foreign
from citadel.settings import Settings
from citadel.types import Document

JOIN_TRIES = 3
JOIN_SECONDS = 10.0  # between looks at the encoders, whose cores the join needs
Report = Callable[[int, int], Any]  # documents encoded, and of these how many by an earlier run


class Built(NamedTuple):
    """The result of a build: documents and units, and units that an earlier run had finished."""

    root: RootManifest
    documents: int
    units: int
    reused: int


def finished_build(job: Job) -> RootManifest | None:
    """The newest root manifest, if the same job wrote it."""
    if not root_generations(job.target):
        return None
    root = newest_root(job.target)
    return root if root.build == replace(job, generation=root.generation).key else None


def build_on_ray(
    ray: Any, job: Job, documents: Iterable[Document], workers: int | None, report: Report
) -> Built:
    """Build a sharded index; interrupted, the same call resumes. By default every core is a worker, or every
    GPU."""
    available = count_encoders(ray, job)
    target = job.target
    with resource_errors(job.root), contextlib.ExitStack() as stack:
        pool = EncoderPool(ray, job, workers or available)  # actors start while this process prepares
        stack.callback(pool.close)
        settings = _settings(job)
        refuse_foreign(target)
        target.make()
        lock = target.lock()
        stack.callback(lock.release)
        stack.callback(pool.close)  # before the lock is released
        collect_shards(target)  # left by a run that died
        progress = _Encoded(job, report)
        for unit in pool.run(progress.missing(cut_units(documents, job))):
            progress.add(unit)
        pool.close()  # its cores are for the next step
        joined = _join(ray, job, progress.keys, settings, pool)
        lock.check()
        root = _publish(job, joined, settings)
        collect_shards(target)
        for name in target.names():
            if name.startswith(WORK_PREFIX):
                target.remove(name)
    return Built(root, progress.documents, sum(map(len, progress.keys)), progress.reused)


def _settings(job: Job) -> Settings:
    """The settings of the index, if a cluster can build it."""
    settings = UnitEncoder(job).prepare()
    if settings.lexical is not None and settings.has_codebook:
        raise UsageError(
            f"{settings.lexical.codec} with the router {settings.router} needs one codebook for all shards: "
            "build with int8 or fp16 and the model's own router on a cluster, or on one machine and run "
            "`citadel shard`"
        )
    return settings


class _Encoded:
    """The units of each shard in corpus order, and how many documents are done."""

    def __init__(self, job: Job, report: Report) -> None:
        self._job, self._report = job, report
        self.keys: list[list[str]] = [[] for _ in range(job.shards)]
        self.documents = self.reused = self._old_documents = 0

    def missing(self, units: Iterable[Unit]) -> Iterator[Unit]:
        """Note all units and yield those that are not finished."""
        for unit in units:
            self.keys[unit.shard].append(unit.key)
            if is_finished(self._job, unit.key):
                self.reused += 1
                self._old_documents += len(unit.documents)
                self.add(unit)
            else:
                yield unit

    def add(self, unit: Unit) -> None:
        self.documents += len(unit.documents)
        self._report(self.documents, self._old_documents)


def _join(
    ray: Any, job: Job, keys: list[list[str]], settings: Settings, encoders: EncoderPool
) -> list[JoinedShard]:
    """Join the units of all shards, in parallel; a task whose worker dies is repeated by Ray."""
    task = ray.remote(num_cpus=1, max_retries=JOIN_TRIES)(join_units)
    references = [task.remote(job, shard, own, settings) for shard, own in enumerate(keys)]
    joined: list[JoinedShard] = []
    try:
        waiting = references
        while waiting:
            _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=JOIN_SECONDS)
            encoders.close()  # one that was not stopped while the head was away holds a core
        joined = ray.get(references)
    except ray.exceptions.RayTaskError as error:
        raise_cause(error)
    except ray.exceptions.RayError as error:
        raise lost(job, error) from error
    return joined


def _publish(job: Job, joined: list[JoinedShard], settings: Settings) -> RootManifest:
    counts = Counter[str]()
    for shard in joined:
        counts.update(shard.counts)
    target = job.target
    target.sync()
    root = RootManifest(
        uuid.uuid4().hex, job.generation, settings, tuple(s.record for s in joined), dict(counts), job.key
    )
    write_root(target, root)
    return root
