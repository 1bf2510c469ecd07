"""Build an index in several commits, each with its position in the corpus, to resume after a crash."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from citadel.api import Index
from citadel.cli.support.corpus_feed import (
    Feed,
    TextFeed,
    open_feed,
    real_source,
    report_skipped,
    report_truncated,
)
from citadel.cli.support.graphs import build_graphs, lacks_graphs
from citadel.cli.support.output import plural, say
from citadel.errors import IndexNotFoundError, InputError, LockHeldError
from citadel.index.manifest import Build
from citadel.index.root_manifest import is_root
from citadel.index.storage import as_storage
from citadel.progress import Progress
from citadel.settings import EncodeOn
from citadel.text.files import STDIN

COMMIT_BYTES = 64_000_000
GPU_COMMIT_BYTES = 1 << 30  # a GPU reads this in a minute; it waits while a commit merges segments
COMMIT_SECONDS = 30.0


@dataclass(frozen=True)
class BuildOptions:
    """The options of one `citadel index`.

    `options` decide what the index holds, so a resumed build must have the same; `on_error` may change,
    because the lines read so far were good under both.
    """

    corpus: str
    path: str
    settings: Mapping[str, Any]  # of Index.create
    options: Mapping[str, str]
    format: str | None = None
    on_error: str = "fail"
    memory: int = 1 << 30
    threads: int | None = None
    overwrite: bool = False
    generate_ids: bool = False
    commit_bytes: int = COMMIT_BYTES
    commit_seconds: float = COMMIT_SECONDS
    graph: bool = True
    encode_on: EncodeOn = field(default_factory=EncodeOn)


def build(job: BuildOptions) -> None:
    """Build an index, resume an interrupted build, or report that it is finished."""
    if job.corpus == STDIN:
        say("standard input cannot be read twice: this build cannot resume if it is interrupted")
    existing = None if job.overwrite else _existing(job)
    if existing is not None and existing.build is not None and existing.build.finished:
        _check_finished(job, existing.build)
        size = plural(len(existing), "document")
        print(f"{job.path}: already finished: all of {job.corpus} is indexed; the index holds {size}")
        if job.graph and lacks_graphs(existing):
            build_graphs(existing)
        return
    feed = _open(job, job.on_error, None if existing is None else existing.build)
    try:
        with _create(job, feed) if existing is None else _resume(job, existing, feed) as index:
            _add_rest(job, index, feed)
            report_truncated(index, index.counts.get("cut", 0))
            print(f"{job.path}: {_summary(index)}")
    except KeyboardInterrupt:
        advice = "" if job.corpus == STDIN else "; rerun the same command to resume"
        say(f"{job.path}: interrupted; committed documents are kept{advice}")
        raise
    finally:
        feed.close()


def _existing(job: BuildOptions) -> Index | None:
    """Open the index of an earlier run of the same command; None if there is nothing to keep."""
    if is_root(as_storage(job.path)):
        raise InputError("it holds a sharded index: give another folder", job.path)
    try:
        index = Index.open(job.path, memory=job.memory)
        if index.settings.model is not None:  # the index does not store its path
            model = job.settings.get("model")
            index = Index.open(job.path, memory=job.memory, model=model, threads=job.threads)
    except IndexNotFoundError:
        return None
    if len(index) == 0 and index.build is not None and index.build.position == 0 and not index.build.finished:
        return None  # interrupted before its first commit with documents
    _check_same(job, index.build)
    return index


def _check_same(job: BuildOptions, build: Build | None) -> None:
    """Refuse an index that another command built."""
    advice = "give another folder, add to it with `citadel add`, or replace it with --overwrite"
    if build is None:
        raise InputError(f"it holds an index that `citadel index` did not build: {advice}", job.path)
    if job.corpus == STDIN or build.source == STDIN:
        raise InputError(
            f"it holds an index already, and standard input cannot be resumed: {advice}", job.path
        )
    if (source := real_source(job.corpus)) != build.source:
        raise InputError(f"this index was built from {build.source}, not from {source}: {advice}", job.path)
    for name in sorted({*job.options, *build.options}):
        before, now = build.options.get(name, "its default"), job.options.get(name, "its default")
        if before != now:
            raise InputError(f"this index was built with {name} {before}, not {now}: {advice}", job.path)


def _check_finished(job: BuildOptions, build: Build) -> None:
    """Refuse to call a build finished if its corpus has changed since."""
    feed = _open(job, "skip", build)
    try:
        if isinstance(feed, TextFeed) and not feed.at_end():
            reason = "the corpus has grown since this index was built: add the new lines with `citadel add`"
            raise InputError(f"{reason}, or rebuild with --overwrite", job.corpus)
    finally:
        feed.close()


def _open(job: BuildOptions, on_error: str, start: Build | None) -> Feed:
    """Open the corpus where an earlier run stopped, if everything before is unchanged."""
    if start is None or start.position == 0:
        return open_feed(job.corpus, job.format, on_error, None, job.memory, job.generate_ids, job.encode_on)
    changed = "the corpus has changed since it was indexed: restore it, or rebuild with --overwrite"
    try:
        with Progress("Verifying the indexed part"):
            feed = open_feed(
                job.corpus, job.format, on_error, start, job.memory, job.generate_ids, job.encode_on
            )
    except InputError as error:
        raise InputError(f"{error.reason.removesuffix('; start anew')}; {changed}", job.corpus) from None
    state = feed.state()
    if (state.position, state.crc) != (start.position, start.crc):
        feed.close()
        raise InputError(f"the first {start.position:,} bytes differ; {changed}", job.corpus)
    return feed


def _resume(job: BuildOptions, index: Index, feed: Feed) -> Index:
    assert index.build is not None
    unit = "line" if isinstance(feed, TextFeed) else "document"
    size = f"{plural(len(index), 'document')} already indexed"
    say(f"{job.path}: resuming after {unit} {index.build.line:,} of {job.corpus}, {size}")
    return index


def _create(job: BuildOptions, feed: Feed) -> Index:
    nothing_read = replace(feed.state(), position=0, crc=0, line=0, options=job.options)
    settings = {**job.settings, "memory": job.memory, "threads": job.threads, "graph": job.graph}
    return Index.create(job.path, **settings, overwrite=True, build=nothing_read)


def _add_rest(job: BuildOptions, index: Index, feed: Feed) -> None:
    """Add the rest of the corpus, one commit at a time."""
    known, ended = index.build, False
    with Progress("Indexing", "documents") as progress:
        while not ended:
            index.delete([])  # takes the lock and sees what others committed
            if index.build != known:
                raise LockHeldError(
                    f"{job.path}: another process is building this index: wait for it or stop it"
                )
            ended = feed.add(index, _enough(job), progress)
            if ended:
                report_skipped(feed)
                feed.require_documents(len(index))
            known = replace(feed.state(), finished=ended, options=job.options)
            index.commit(known)
    if job.graph and lacks_graphs(index):
        build_graphs(index)


def _enough(job: BuildOptions) -> Callable[[int], bool]:
    end = time.monotonic() + job.commit_seconds
    return lambda size: size >= job.commit_bytes or time.monotonic() >= end


def _summary(index: Index) -> str:
    counts = (
        f"{index.counts[name]:,} {name}"
        for name in ("replaced", "skipped", "split", "cut")
        if index.counts.get(name)
    )
    return ", ".join([plural(len(index), "document"), *counts])
