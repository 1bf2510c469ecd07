"""Builds on a local Ray cluster: equal rankings, and kill −9 of actors, of the driver, of a whole node."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

import citadel
from citadel.cluster.build import Built, build_on_ray
from citadel.cluster.encode_unit import UnitEncoder, is_finished, unit_folder
from citadel.cluster.job import Job
from citadel.errors import CorruptIndexError, InputError, LockHeldError, ResourceError, UsageError
from citadel.settings import EncodeOn
from citadel.types import Document
from tests.cluster.test_units import BM25, documents
from tests.support.ray_cluster import STORE, local_cluster
from tests.support.stalling_encoders import (
    BeforeMarker,
    FullDisk,
    MidBatch,
    let_go,
    wait_for_stalled,
)

ray: Any = pytest.importorskip("ray", reason="needs the extra [ray]")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray leaves sockets open
]
DEADLINE = 120.0  # seconds; generous, because the machine may be busy


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes on this machine, beside a head without cores."""
    with local_cluster(1, 1) as made:
        yield made


def job_of(root: Path, **options: Any) -> Job:
    given: dict[str, Any] = {"settings": BM25, "unit_documents": 10, "memory": 64 << 20, "graph": False}
    return Job(str(root), "corpus", 3, **{**given, **options})


def build(
    job: Job, given: list[Document], report: Callable[[int, int], Any] = lambda done, old: None
) -> Built:
    return build_on_ray(ray, job, given, None, report)


def require_equal(root: Path, given: list[Document], folder: Path) -> None:
    """The sharded index is whole and answers like one index of the same documents."""
    index = citadel.Index.create(folder, model="bm25")
    index.add(given)
    index.commit()
    sharded = citadel.Index.open(root)
    sharded.check(deep=True)
    assert sorted(sharded.ids()) == sorted(index.ids())
    for query in ("fox", "dog again", "w1 w2", "x11 fox"):
        ours, theirs = sharded.search(query, 1000), index.search(query, 1000)
        assert (ours.ids, ours.scores) == (theirs.ids, theirs.scores)
    assert not list(root.glob(".build-*"))


def actors() -> list[psutil.Process]:
    """The encoder actors of this test."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # zombies are of that kind, too
            if "UnitEncoder" in " ".join(process.cmdline()):
                found.append(process)
    return found


def test_equal_rankings(cluster: Any, tmp_path: Path) -> None:
    built = build(job_of(tmp_path / "root"), documents(300))
    assert (built.documents >= 300, built.reused) == (True, 0)
    require_equal(tmp_path / "root", documents(300), tmp_path / "one")


def test_killed_actors_are_replaced(cluster: Any, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill(done: int, old: int) -> None:
        if len(killed) < 2 and (alive := actors()):
            killed.append(alive[0].pid)
            alive[0].send_signal(signal.SIGKILL)

    build(job_of(tmp_path / "root"), documents(300), kill)
    assert len(set(killed)) == 2
    require_equal(tmp_path / "root", documents(300), tmp_path / "one")


def test_a_lost_node(cluster: Any, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=1, object_store_memory=STORE)
    lost: list[bool] = []

    def lose(done: int, old: int) -> None:
        if done > 40 and not lost:
            lost.append(True)
            cluster.remove_node(node, allow_graceful=False)

    build(job_of(tmp_path / "root"), documents(300), lose)
    assert lost
    require_equal(tmp_path / "root", documents(300), tmp_path / "one")


def encode_with(encoder: type[UnitEncoder], patch: pytest.MonkeyPatch) -> None:
    """Have the next builds use an encoder of the tests."""
    patch.setattr("citadel.cluster.encoder_pool.UnitEncoder", encoder)


@pytest.mark.parametrize(
    ("encoder", "lost"),
    [
        (MidBatch, "actor"),
        pytest.param(MidBatch, "node", marks=pytest.mark.night),
        pytest.param(BeforeMarker, "actor", marks=pytest.mark.night),
        (BeforeMarker, "node"),
    ],
)
def test_lost_at_a_point(
    encoder: type[UnitEncoder], lost: str, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 of an actor or of a node, in the middle of a unit, or between its segment and its marker."""
    encode_with(encoder, monkeypatch)
    job = job_of(tmp_path / "root")
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(build, job, documents(300))
        stalled = wait_for_stalled(job)
        names = unit_folder(job, stalled.key).names()
        assert any(name.startswith("seg-") for name in names) == (encoder is BeforeMarker)
        assert not is_finished(job, stalled.key)
        if lost == "actor":
            psutil.Process(stalled.pid).kill()
        else:
            [node] = [node for node in cluster.list_all_nodes() if node.node_id == stalled.node]
            cluster.remove_node(node, allow_graceful=False)
        building.result(DEADLINE)
    if lost == "node":
        cluster.add_node(num_cpus=1, object_store_memory=STORE)
    require_equal(tmp_path / "root", documents(300), tmp_path / "one")


def test_a_full_disk(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode_with(FullDisk, monkeypatch)
    job = job_of(tmp_path / "root")
    with pytest.raises(ResourceError, match="no space left"):
        build(job, documents(300))
    with pytest.raises(citadel.IndexNotFoundError):
        citadel.Index.open(tmp_path / "root")
    let_go(job)
    assert build(job, documents(300)).reused > 0
    require_equal(tmp_path / "root", documents(300), tmp_path / "one")


def test_a_damaged_unit(cluster: Any, tmp_path: Path) -> None:
    """A flipped bit in a finished unit: the build says so, and the next one encodes that unit again."""
    job, flipped = job_of(tmp_path / "root"), list[Path]()

    def flip(done: int, old: int) -> None:
        if done > 150 and not flipped:
            flipped.append(sorted(Path(job.work.location).glob("unit-*/seg-*"))[0])
            data = bytearray(flipped[0].read_bytes())
            data[len(data) // 2] ^= 1
            flipped[0].write_bytes(data)

    with pytest.raises(CorruptIndexError, match="rerun the same command"):
        build(job, documents(300), flip)
    assert flipped and not flipped[0].exists()
    built = build(job, documents(300))
    assert built.units - built.reused == 1
    require_equal(tmp_path / "root", documents(300), tmp_path / "one")


def test_a_failed_build_resumes(cluster: Any, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(done: int, old: int) -> None:
        if done > 150:
            raise Stop

    with pytest.raises(Stop):
        build(job_of(tmp_path / "root"), documents(300), stop)
    with pytest.raises(citadel.IndexNotFoundError):
        citadel.Index.open(tmp_path / "root")
    built = build(job_of(tmp_path / "root"), documents(300))
    assert built.units / 3 < built.reused < built.units
    require_equal(tmp_path / "root", documents(300), tmp_path / "one")


def test_two_drivers(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is refused, whatever it builds; the first one is not disturbed."""
    encode_with(MidBatch, monkeypatch)
    write_corpus(tmp_path / "corpus.jsonl", 30)
    job = job_of(tmp_path / "root")
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(build, job, documents(300))
        wait_for_stalled(job)
        with pytest.raises(LockHeldError):
            build(job, documents(300))
        other = command(tmp_path, cluster=cluster.address)
        refused = subprocess.run(other, capture_output=True, text=True, timeout=DEADLINE, check=False)
        assert refused.returncode not in (0, 1), refused.stderr
        assert "another process" in refused.stderr
        let_go(job)
        building.result(DEADLINE)
    require_equal(tmp_path / "root", documents(300), tmp_path / "one")


def test_errors_of_workers_keep_their_type(cluster: Any, tmp_path: Path) -> None:
    job = job_of(tmp_path / "root", memory=1 << 20)
    with pytest.raises((InputError, ResourceError), match="huge"):
        build(job, [Document("huge", "fox " * 2_000_000)])
    with pytest.raises(UsageError, match="pq2"):
        build(Job(str(tmp_path / "pq"), "corpus", 2, {"model": "default", "codec": "pq2"}), documents())


def test_devices(cluster: Any, tmp_path: Path) -> None:
    """Encoders on GPUs ask Ray for one each; on a GPU that only Ray believes in, the error says so."""
    model = {"model": "default"}
    torch_cpu = job_of(tmp_path / "torch", settings=model, encode_on=EncodeOn("torch-cpu", "fp32"))
    assert build(torch_cpu, documents(20)).documents >= 20
    assert citadel.Index.open(tmp_path / "torch").search("fox", 5)
    job = job_of(tmp_path / "root", settings=model, encode_on=EncodeOn("cuda"))
    with pytest.raises(ResourceError, match="needs a GPU, and the cluster has none"):
        build(job, documents())
    node = cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=STORE)
    try:
        with pytest.raises(UsageError, match="CUDA"):
            build(job, documents())
    finally:
        cluster.remove_node(node)


def write_corpus(path: Path, count: int) -> None:
    rows = ({"id": d.id, "text": d.text, **d.metadata} for d in documents(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def command(folder: Path, *options: str, cluster: str = "local") -> list[str]:
    shown = [sys.executable, "-m", "citadel.cli", "index", str(folder / "corpus.jsonl"), str(folder / "root")]
    return [*shown, "--model", "bm25", "--cluster", cluster, "--shards", "2", *options]


def test_killed_driver_resumes(tmp_path: Path) -> None:
    """The whole local cluster, driver and head, is killed when some units are finished."""
    write_corpus(tmp_path / "corpus.jsonl", 40_000)
    first = subprocess.Popen(command(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + DEADLINE
    while len(list(tmp_path.glob("root/.build-*/unit-*/gen.00000002"))) < 4:
        assert first.poll() is None and time.monotonic() < end, "the build ended or stalled"
        time.sleep(0.01)
    for process in [*psutil.Process(first.pid).children(recursive=True), psutil.Process(first.pid)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    first.wait()
    finished = len(list(tmp_path.glob("root/.build-*/unit-*/gen.00000002")))
    done = subprocess.run(command(tmp_path), capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 shards, 40,000 documents" in done.stdout
    assert f"resumed: {finished} of" in done.stderr
    citadel.Index.open(tmp_path / "root").check(deep=True)
    again = subprocess.run(command(tmp_path), capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert "already finished" in again.stdout
    other = command(tmp_path, "--k1", "2")
    refused = subprocess.run(other, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (refused.returncode, "--overwrite" in refused.stderr) == (2, True)
