"""Random states of an object store in which a writer died: puts lost, cut, repeated, or late.

A workload is run once and every state of the store on the way is kept. A crash state is one of these, with
the request in flight applied, half applied or lost, and copies of earlier puts that arrive late.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import citadel
from citadel.errors import CorruptIndexError
from citadel.index import object_store
from citadel.index.object_store import Conflict
from tests.conftest import NIGHT
from tests.crash.test_object_store import ids_of, storage
from tests.support.bucket import Put, Stored, TestBucket

STATES = 2_000 if NIGHT else 30  # per part
PARTS = range(10)
STATES_PER_WORKLOAD = 100
LEASE = "index/LOCK"
LATE = 3  # copies of earlier puts, at most

pytestmark = pytest.mark.slow


class Moment(NamedTuple):
    """The store before a request, the request if it is a put, and the commits acknowledged by then."""

    objects: dict[str, Stored]
    put: Put | None
    commits: int


class History(NamedTuple):
    """All moments of a workload, and the ids after each of its commits."""

    moments: list[Moment]
    ids: list[set[str]]


def record(chance: random.Random, cache: Path) -> History:
    """Run a workload of random additions, replacements, deletions and merges."""
    bucket, moments, ids = TestBucket(), list[Moment](), [set[str]()]
    done = -1

    def before(number: int, kind: str, put: Put | None) -> None:
        moments.append(Moment(dict(bucket.objects), put, done))

    bucket.before = before
    index = citadel.Index.create(storage(bucket, cache), model="bm25")
    done = 0
    for commit in range(chance.randint(3, 7)):
        now = set(ids[-1])
        added = {f"d{chance.randrange(40)}" for _ in range(chance.randint(1, 6))}
        gone = {id for id in now - added if chance.random() < 0.2}
        index.add([{"id": id, "text": f"fox w{commit}"} for id in sorted(added)])
        if gone:
            index.delete(sorted(gone))
        ids.append((now | added) - gone)
        index.commit()
        done += 1
        if chance.random() < 0.3:
            index.merge()
    index.close()
    moments.append(Moment(dict(bucket.objects), None, done))
    return History(moments, ids)


class Crashed(NamedTuple):
    """A crash state: the store, the puts sent before, acknowledged commits, and whether a put was cut."""

    bucket: TestBucket
    sent: list[Put]
    commits: int
    was_cut: bool


def crash(history: History, chance: random.Random) -> Crashed:
    """A random crash state of a workload."""
    position = chance.randrange(len(history.moments))
    moment, bucket = history.moments[position], TestBucket()
    bucket.objects, bucket._etags = dict(moment.objects), itertools.count(1 << 20)
    fate, was_cut = chance.choice(["lost", "applied", "cut"]), False
    if moment.put is not None and fate != "lost":
        was_cut = fate == "cut"
        size = chance.randrange(len(moment.put.data)) if was_cut else len(moment.put.data)
        bucket.apply(moment.put._replace(data=moment.put.data[:size]))
    sent = [past.put for past in history.moments[:position] if past.put is not None]
    deliver(bucket, sent, chance)
    return Crashed(bucket, sent, moment.commits, was_cut)


def deliver(bucket: TestBucket, sent: list[Put], chance: random.Random) -> None:
    """Copies of earlier puts arrive; the store refuses each unless its object is gone."""
    for put in chance.sample(sent, min(chance.randint(0, LATE), len(sent))):
        with contextlib.suppress(Conflict):
            bucket.apply(put)


def problems(states: int, seed: int, folder: Path) -> Iterator[str]:
    """Crash states whose index has lost or doubled something."""
    chance = random.Random(seed)
    for number in range(states):
        if number % STATES_PER_WORKLOAD == 0:
            history = record(chance, folder / f"writer-{number}")
        crashed = crash(history, chance)
        bucket, commits, was_cut = crashed.bucket, crashed.commits, crashed.was_cut
        allowed = history.ids[max(commits, 0) : commits + 2]
        try:
            found = ids_of(bucket, folder / f"reader-{number % 50}")
        except (citadel.IndexNotFoundError, CorruptIndexError) as error:
            if commits >= 0 and not was_cut:
                yield f"{seed}/{number}: {error}"
            continue
        if found not in (allowed if commits >= 0 else [set()]):
            yield f"{seed}/{number}: {commits} commits, {sorted(found)}"
        if not was_cut and number % 4 == 0:
            yield from next_writer(crashed, found, folder / f"next-{number}", chance)


def next_writer(crashed: Crashed, found: set[str], cache: Path, chance: random.Random) -> Iterator[str]:
    """Another writer goes on, and copies of the dead one's puts arrive after its commit."""
    bucket = crashed.bucket
    bucket.objects.pop(LEASE, None)  # the lease of the dead writer has ended
    index = citadel.Index.open(storage(bucket, cache))
    index.add([{"id": "later", "text": "fox"}])
    index.commit()
    index.close()
    deliver(bucket, crashed.sent, chance)
    if (now := ids_of(bucket, cache)) != found | {"later"}:
        yield f"after the next writer: {sorted(now)}, not {sorted(found | {'later'})}"


@pytest.mark.parametrize("part", PARTS)
def test_crash_states(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(object_store, "RENEWALS", 1e-3)  # never within a test
    assert list(problems(STATES, part, tmp_path)) == []
