"""Encoder actors on a Ray cluster. A unit whose actor dies is given to another one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from citadel.cluster.encode_unit import UnitEncoder
from citadel.cluster.job import Job
from citadel.cluster.units import Unit
from citadel.errors import CitadelError, LockHeldError, ResourceError

MAX_TRIES = 4  # per unit
LOCK_TRIES = 90  # in an object store the lease of a dead worker lasts a minute
START_SECONDS = 300.0  # until an actor must have started, if none works
_QUEUE = 2  # units per actor, so that none waits for the driver
_LOCK_WAIT = 1.0  # seconds until a unit is tried again that another worker holds


class _Sent(NamedTuple):
    """A unit that an actor has."""

    actor: Any
    unit: Unit
    tries: int


class EncoderPool:
    """Actors with one core each, and one GPU each if they encode on GPUs.

    Units go only to actors that have started: one that the cluster has no core for, such as the replacement
    of an actor on a lost node, never gets any."""

    def __init__(self, ray: Any, job: Job, actors: int) -> None:
        self._ray, self._job = ray, job
        needs = {"num_cpus": 1, "num_gpus": int(job.uses_gpus)}
        self._actor = ray.remote(max_restarts=0, **needs)(UnitEncoder)
        self._starting: dict[Any, Any] = {}  # by the reference of `prepare`
        self._ready: list[Any] = []
        self._sent: dict[Any, _Sent] = {}
        self._again: list[tuple[Unit, int]] = []  # with the number of the next try
        self._stopped: list[Any] = []
        self._failed_starts, self._max_failed_starts = 0, MAX_TRIES * actors
        for _ in range(actors):
            self._start()

    def _start(self) -> None:
        actor = self._actor.remote(self._job)
        self._starting[actor.prepare.remote()] = actor

    def run(self, units: Iterable[Unit]) -> Iterator[Unit]:
        """Encode units and yield each when it is durable, in any order."""
        for unit in units:
            while self._again or self._free() is None:
                yield from self._step()
            self._send(unit, 1)
        while self._sent or self._again:
            yield from self._step()

    def _step(self) -> Iterator[Unit]:
        if self._again and self._free() is not None:
            self._send(*self._again.pop())
        else:
            yield from self._wait()

    def _free(self) -> Any | None:
        """The actor with the fewest units, if it takes another one."""
        counts = [(sum(s.actor is actor for s in self._sent.values()), actor) for actor in self._ready]
        count, actor = min(counts, key=lambda pair: pair[0], default=(_QUEUE, None))
        return actor if count < _QUEUE else None

    def _send(self, unit: Unit, tries: int) -> None:
        actor = self._free()
        assert actor is not None  # callers wait for it
        self._sent[actor.encode.remote(unit)] = _Sent(actor, unit, tries)

    def _wait(self) -> Iterator[Unit]:
        """Wait for a unit or an actor; yield the unit if it is encoded."""
        done, _ = self._ray.wait([*self._sent, *self._starting], num_returns=1, timeout=START_SECONDS)
        if not done:
            if not self._sent:
                raise ResourceError(
                    f"{self._job.root}: no encoder could start within {START_SECONDS:.0f} s; check that the "
                    f"cluster has free {_needed(self._job)} (`ray status`), then rerun the same command"
                )
            return
        errors = self._ray.exceptions
        sent, actor = self._sent.pop(done[0], None), self._starting.pop(done[0], None)
        try:
            self._ray.get(done[0])
        except errors.RayTaskError as error:
            self._failed(sent, error)
        except errors.RayActorError as error:
            self._died(sent, error)
        except errors.RayError as error:
            raise lost(self._job, error) from error
        else:
            if sent is None:
                self._ready.append(actor)
            else:
                yield sent.unit

    def _failed(self, sent: _Sent | None, error: Any) -> None:
        """Handle an exception that the encoder raised."""
        if sent is None or not isinstance(error.cause, LockHeldError):
            raise_cause(error)
        else:
            self._try_again(sent, error.cause, LOCK_TRIES)
            time.sleep(_LOCK_WAIT)

    def _died(self, sent: _Sent | None, error: Exception) -> None:
        """Replace an actor that died; its other unit fails, too, and finds it replaced."""
        if sent is None:
            self._failed_starts += 1
            if self._failed_starts > self._max_failed_starts:
                raise lost(self._job, error) from error
            self._start()
            return
        if any(actor is sent.actor for actor in self._ready):
            self._ready = [actor for actor in self._ready if actor is not sent.actor]
            self._start()
        self._try_again(sent, error)

    def _try_again(self, sent: _Sent, error: Exception, tries: int = MAX_TRIES) -> None:
        if sent.tries >= tries:
            size, first = len(sent.unit.documents), sent.unit.documents[0].id
            raise ResourceError(
                f"{self._job.root}: a unit of {size} documents from id {first!r} on failed "
                f"{sent.tries} times ({_short(error)}); finished units are kept: rerun the same command, "
                "with fewer --workers if memory was short"
            ) from error
        self._again.append((sent.unit, sent.tries + 1))

    def close(self) -> None:
        """Stop the actors; called again, those that are still there.

        `kill` goes through the head and is lost while that is away; the actor itself is asked as well.
        """
        self._stopped += [*self._ready, *self._starting.values()]
        self._ready, self._starting = [], {}
        for actor in self._stopped:
            actor.__ray_terminate__.remote()
            self._ray.kill(actor)


def count_encoders(ray: Any, job: Job) -> int:
    """How many encoders a cluster has room for: one per core or per GPU."""
    found = int(ray.cluster_resources().get("GPU" if job.uses_gpus else "CPU", 0))
    if job.uses_gpus and not found:
        raise ResourceError(
            f"{job.root}: --device {job.encode_on.device} needs a GPU, and the cluster has none; "
            "start its machines with `ray start --num-gpus=N`, or leave --device out"
        )
    return max(found, 1)


def _needed(job: Job) -> str:
    return "cores and GPUs" if job.uses_gpus else "cores"


def raise_cause(error: Any) -> None:
    """Raise what a task raised, so that its type and message stay."""
    if isinstance(error.cause, CitadelError | OSError | MemoryError):
        raise error.cause from None
    raise error


def lost(job: Job, error: Exception) -> ResourceError:
    """The error of a build whose cluster failed."""
    return ResourceError(
        f"{job.root}: the Ray cluster failed ({_short(error)}); finished units are kept: "
        "rerun the same command to resume"
    )


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
