"""A build that survives being killed: it commits as it reads and says in each commit how far it has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from citadel.api import Index
from citadel.cli.support.corpus_feed import Feed, TextFeed, open_feed, real_source, tell_skipped, tell_truncated
from citadel.cli.support.output import plural, say
from citadel.errors import IndexNotFoundError, InputError, LockHeldError
from citadel.index.manifest import Build
from citadel.progress import Progress
from citadel.text.files import STDIN

COMMIT_BYTES = 64_000_000
COMMIT_SECONDS = 30.0


@dataclass(frozen=True)
class Job:
    """What one `citadel index` command asks for.

    `options` decide what the index holds, so a resumed build must have the same; `on_error` may change, for the lines
    read so far were good under both.
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
    commit_bytes: int = COMMIT_BYTES
    commit_seconds: float = COMMIT_SECONDS


def build(job: Job) -> None:
    """Build an index, go on with one that was stopped, or say that it is finished."""
    if job.corpus == STDIN:
        say("standard input cannot be read twice: if this build is stopped it cannot resume")
    found = None if job.overwrite else _existing(job)
    if found is not None and found.build is not None and found.build.finished:
        _check_finished(job, found.build)
        print(
            f"{job.path}: finished already: all of {job.corpus} was read; it holds {plural(len(found), 'document')} now"
        )
        return
    feed = _open(job, job.on_error, None if found is None else found.build)
    try:
        with _create(job, feed) if found is None else _resume(job, found, feed) as index:
            _read_on(job, index, feed)
            tell_skipped(feed)
            tell_truncated(index, index.counts.get("cut", 0))
            print(f"{job.path}: {_summary(index)}")
    except KeyboardInterrupt:
        say(
            f"{job.path}: stopped; what was committed stays"
            + ("" if job.corpus == STDIN else ", the same command goes on")
        )
        raise
    finally:
        feed.close()


def _existing(job: Job) -> Index | None:
    """The index of an earlier run of the same command; None where there is nothing to keep."""
    try:
        index = Index.open(job.path, memory=job.memory)
        if index.settings.model is not None:  # an index does not say where it is
            model = job.settings.get("model")
            index = Index.open(job.path, memory=job.memory, model=model, threads=job.threads)
    except IndexNotFoundError:
        return None
    if len(index) == 0 and index.build is not None and index.build.position == 0 and not index.build.finished:
        return None  # killed before its first documents were committed
    _check_same(job, index.build)
    return index


def _check_same(job: Job, build: Build | None) -> None:
    """Refuse an index that another command made."""
    advice = "give another folder, add to it with `citadel add`, or replace it with --overwrite"
    if build is None:
        raise InputError(f"there is an index already that no `citadel index` made: {advice}", job.path)
    if job.corpus == STDIN or build.source == STDIN:
        raise InputError(f"there is an index already, and standard input cannot be resumed: {advice}", job.path)
    if (source := real_source(job.corpus)) != build.source:
        raise InputError(f"the index there was built from {build.source}, not from {source}: {advice}", job.path)
    for name in sorted({*job.options, *build.options}):
        before, now = build.options.get(name, "its default"), job.options.get(name, "its default")
        if before != now:
            raise InputError(f"the index there was built with {name} {before}, not {now}: {advice}", job.path)


def _check_finished(job: Job, build: Build) -> None:
    """Refuse to call a build finished when its corpus has changed since."""
    feed = _open(job, "skip", build)
    try:
        if isinstance(feed, TextFeed) and not feed.at_end():
            reason = "the corpus has grown since this index was built: add the new lines with `citadel add`"
            raise InputError(f"{reason}, or build anew with --overwrite", job.corpus)
    finally:
        feed.close()


def _open(job: Job, on_error: str, start: Build | None) -> Feed:
    """Open the corpus, at the place where an earlier run stopped if all before it is unchanged."""
    if start is None or start.position == 0:
        return open_feed(job.corpus, job.format, on_error, memory=job.memory)
    changed = "the corpus has changed since it was indexed: restore it, or build anew with --overwrite"
    try:
        with Progress("Reading again what is indexed"):
            feed = open_feed(job.corpus, job.format, on_error, start, job.memory)
    except InputError as error:
        raise InputError(f"{error.reason.removesuffix('; start anew')}; {changed}", job.corpus) from None
    state = feed.state()
    if (state.position, state.crc) != (start.position, start.crc):
        feed.close()
        raise InputError(f"other bytes among the first {start.position:,}; {changed}", job.corpus)
    return feed


def _resume(job: Job, index: Index, feed: Feed) -> Index:
    assert index.build is not None
    where = "line" if isinstance(feed, TextFeed) else "document"
    there = f"{plural(len(index), 'document')} in the index already"
    say(f"{job.path}: resuming after {where} {index.build.line:,} of {job.corpus}, {there}")
    return index


def _create(job: Job, feed: Feed) -> Index:
    nothing_read = replace(feed.state(), position=0, crc=0, line=0, options=job.options)
    settings = {**job.settings, "memory": job.memory, "threads": job.threads}
    return Index.create(job.path, **settings, overwrite=True, build=nothing_read)


def _read_on(job: Job, index: Index, feed: Feed) -> None:
    """Add the rest of the corpus, one commit at a time."""
    known, ended = index.build, False
    with Progress("Indexing", "documents") as progress:
        while not ended:
            index.delete([])  # takes the lock and sees what others committed
            if index.build != known:
                raise LockHeldError(f"{job.path}: another process builds this index too; wait for it or stop it")
            ended = feed.add(index, _enough(job), progress)
            known = replace(feed.state(), finished=ended, options=job.options)
            index.commit(known)


def _enough(job: Job) -> Callable[[int], bool]:
    end = time.monotonic() + job.commit_seconds
    return lambda size: size >= job.commit_bytes or time.monotonic() >= end


def _summary(index: Index) -> str:
    counts = (f"{index.counts[name]:,} {name}" for name in ("replaced", "skipped", "cut") if index.counts.get(name))
    return ", ".join([plural(len(index), "document"), *counts])
