"""Searches on a local Ray cluster: kill −9 and SIGSTOP of replicas under load, generation switch, tokens."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

import citadel
from citadel.index.shard import shard_index
from citadel.index.storage import FolderStorage
from citadel.server.config import Limits
from tests.cluster.test_remote_engine import texts
from tests.index.quick import Quick
from tests.support.ray_cluster import local_cluster
from tests.support.serving import Running, running, wait_until

ray: Any = pytest.importorskip("ray", reason="needs the extra [ray]")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray leaves sockets open
]
SHARDS, DEADLINE = 2, 3.0
QUERY = json.dumps({"query": "fox", "k": 500}).encode()


class Served(NamedTuple):
    """A server over a sharded index on a cluster, and the index itself."""

    server: Running
    source: citadel.Index
    root: Path
    pool: Any


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes on this machine, beside a head without cores."""
    with local_cluster(3, 3) as made:
        yield made


@pytest.fixture(scope="module")
def served(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    from citadel.cluster.remote_engine import RemoteOptions
    from citadel.cluster.shard_pool import ShardOptions, ShardPool

    folder = tmp_path_factory.mktemp("served")
    index = citadel.Index.create(Quick(folder / "one"), model="bm25")
    index.add(texts(120))
    index.commit()
    shard_index(index._snapshot, FolderStorage(folder / "root"), SHARDS)
    pool = ShardPool(ray, str(folder / "root"), ShardOptions(2, remote=RemoteOptions(1.0)))
    limits = Limits(deadline_ms=round(DEADLINE * 1000))
    opened = citadel.Index.open(folder / "root")
    with running(opened, limits=limits, reload_seconds=0.1, engines={"index": pool.open_engine}) as server:
        yield Served(server, index, folder / "root", pool)
    pool.close()
    from ray import serve

    serve.shutdown()


def replicas(shard: int) -> list[psutil.Process]:
    """The processes that serve a shard."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            title = " ".join(process.cmdline())
        except psutil.NoSuchProcess:
            continue
        if "ServeReplica" in title and f"-{shard}:" in title and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


class Answer(NamedTuple):
    status: int
    body: dict[str, Any]
    seconds: float


def search(port: int) -> Answer:
    start = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", "/v1/search", QUERY, {"Content-Type": "application/json"})
    response = connection.getresponse()
    body = json.loads(response.read())
    connection.close()
    return Answer(response.status, body, time.perf_counter() - start)


def under_load(port: int, work: Callable[[list[Answer]], None], threads: int = 2) -> list[Answer]:
    """Search in a loop while the work runs; return all answers."""
    answers: list[Answer] = []
    over = threading.Event()

    def loop() -> None:
        while not over.is_set():
            answers.append(search(port))

    loops = [threading.Thread(target=loop) for _ in range(threads)]
    for thread in loops:
        thread.start()
    try:
        work(answers)
    finally:
        over.set()
        for thread in loops:
            thread.join(30)
    return answers


def more(answers: list[Answer], count: int) -> None:
    """Wait until there are `count` more answers."""
    wanted = len(answers) + count
    wait_until(lambda: len(answers) >= wanted, 60)


def wait_whole(port: int) -> None:
    """Wait until every shard has its replicas and answers."""
    wait_until(lambda: all(len(replicas(shard)) == 2 for shard in range(SHARDS)), 60)
    wait_until(lambda: all(search(port).body.get("complete") for _ in range(20)), 60)


def test_the_client_sees_no_difference(served: Served) -> None:
    with running(citadel.Index.open(served.source._storage)) as plain:
        for options in (
            {"k": 7},
            {"k": 200, "offset": 3},
            {"k": 9, "filter": {"year": {"$gte": 1903}}},
            {"k": 4, "group_by": "year"},
            {"k": 2, "explain": True},
        ):
            body = {"query": "fox old", **options}
            ours, theirs = (s.post("/v1/search", body)[1] for s in (served.server, plain))
            assert (ours.pop("complete"), ours.pop("shards")) == (True, "2/2")
            for answer in (ours, theirs):
                del answer["timings"], answer["dot_products"], answer["generation"]
            assert ours == theirs
        mine, theirs_too = served.server.client, plain.client
        assert mine.search("fox", 5).ids == theirs_too.search("fox", 5).ids
        assert mine.search("fox").complete
        assert sorted(mine.ids()) == sorted(theirs_too.ids())
        assert mine.get("d7") == theirs_too.get("d7")
        assert mine.count({"year": 1903}) == theirs_too.count({"year": 1903})
        status, error = served.server.post("/v1/search", {"query": "fox", "k": 5000})
        assert (status, error["error"]["code"]) == (422, "limit")


def test_graphs_and_hybrid_searches(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every mode of a hybrid index with graphs in its shards, against the same shards in one process."""
    from citadel.cluster.shard_pool import ShardOptions, ShardPool

    monkeypatch.setattr("citadel.index.shard.GRAPH_FLOOR", 1)
    index = citadel.Index.create(Quick(tmp_path / "one"), model="default", hybrid=True)
    index.add(texts(150))
    index.commit()
    shard_index(index._snapshot, FolderStorage(tmp_path / "root"), SHARDS, graph=True)
    pool = ShardPool(ray, str(tmp_path / "root"), ShardOptions(1, 0.5))
    opened = [citadel.Index.open(tmp_path / "root") for _ in range(2)]
    assert all(part.record.graph_file for part in opened[0]._snapshot.segments)
    engines = {"index": pool.open_engine}
    with running(opened[0], engines=engines) as ours, running(opened[1]) as plain:
        for options in (
            {"semantic_mode": "exact"},
            {"semantic_mode": "exact", "filter": {"year": {"$gte": 1903}}, "explain": True},
            {"mode": "bm25"},
            {"mode": "bm25", "filter": {"year": 1902}},
        ):
            answers = [answer(server, options) for server in (ours, plain)]
            assert answers[0] == answers[1]
        whole = {hit["id"]: hit["score"] for hit in answer(ours, {"semantic_mode": "exact", "k": 150})}
        best = list(whole)[:20]
        for mode in ("graph", "auto", "rerank"):
            for extra in ({}, {"filter": {"year": {"$gte": 1903}}}):
                hits = answer(ours, {"semantic_mode": mode, **extra})
                assert {hit["id"]: hit["score"] for hit in hits} == {h["id"]: whole[h["id"]] for h in hits}
                assert extra or len({hit["id"] for hit in hits} & set(best)) >= 8
        wide = answer(ours, {"semantic_mode": "graph", "ef": 150})
        assert [hit["score"] for hit in wide] == list(whole.values())[:10]
        fused = answer(ours, {"mode": "hybrid", "semantic_mode": "exact"})
        assert fused == answer(plain, {"mode": "hybrid", "semantic_mode": "exact"})
    pool.close()


def answer(server: Running, options: dict[str, Any]) -> list[dict[str, Any]]:
    """The hits of a search; it is complete."""
    status, body = server.post("/v1/search", {"query": "an old fox", "k": 10, **options})
    assert status == 200, body
    assert body.get("complete", True)
    hits: list[dict[str, Any]] = body["hits"]
    return hits


def test_replicas_are_on_different_nodes(served: Served) -> None:
    for shard in range(SHARDS):
        assert len({process.ppid() for process in replicas(shard)}) == 2


def test_one_killed_replica_fails_no_request(served: Served) -> None:
    port = served.server.port
    wait_whole(port)

    def kill(answers: list[Answer]) -> None:
        more(answers, 50)
        replicas(0)[0].kill()
        more(answers, 150)

    answers = under_load(port, kill)
    assert {answer.status for answer in answers} == {200}
    assert {answer.body["shards"] for answer in answers} == {"2/2"}
    assert max(answer.seconds for answer in answers) < DEADLINE
    wait_whole(port)


def test_a_dead_shard_is_flagged_and_comes_back(served: Served) -> None:
    port = served.server.port
    wait_whole(port)

    def kill(answers: list[Answer]) -> None:
        more(answers, 20)
        for process in replicas(1):
            process.kill()
        wait_until(lambda: any(answer.body.get("shards") == "1/2" for answer in list(answers)), 60)
        wait_until(lambda: answers[-1].body.get("shards") == "2/2", 60)

    answers = under_load(port, kill)
    assert {answer.status for answer in answers} == {200}
    assert {(answer.body["complete"], answer.body["shards"]) for answer in answers} == {
        (True, "2/2"),
        (False, "1/2"),
    }
    assert max(answer.seconds for answer in answers) < DEADLINE
    whole = max(len(answer.body["hits"]) for answer in answers)
    assert {len(answer.body["hits"]) for answer in answers if answer.body["complete"]} == {whole}
    wait_whole(port)


def test_a_hedge_answers_for_a_stopped_replica(served: Served) -> None:
    port = served.server.port
    wait_whole(port)
    more_than = served.pool.scatter.hedged

    def stop(answers: list[Answer]) -> None:
        more(answers, 50)
        replicas(0)[0].send_signal(signal.SIGSTOP)
        more(answers, 150)

    answers = under_load(port, stop)
    assert {answer.status for answer in answers} == {200}
    assert {answer.body["shards"] for answer in answers} == {"2/2"}
    assert max(answer.seconds for answer in answers) < 1.0  # the timeout of a shard
    assert served.pool.scatter.hedged > more_than
    for process in replicas(0):
        process.send_signal(signal.SIGCONT)
    wait_whole(port)


def test_no_answer_mixes_generations(served: Served) -> None:
    """Each generation replaces all documents; every answer has those of its generation only."""
    port, index = served.server.port, served.source
    wait_whole(port)

    def switch(answers: list[Answer]) -> None:
        for number in range(2, 5):
            index.add([row | {"text": f"fox generation{number}"} for row in texts(120)])
            index.commit()
            shard_index(index._snapshot, FolderStorage(served.root), SHARDS, overwrite=True)
            wait_until(lambda n=number: any(a.body["generation"] == n for a in answers[-1:]))
            more(answers, 40)

    answers = under_load(port, switch)
    assert {answer.status for answer in answers} == {200}
    assert {answer.body["generation"] for answer in answers} == {1, 2, 3, 4}
    for answer in answers:
        own = answer.body["generation"]
        kinds = {hit["text"].split()[-1] for hit in answer.body["hits"]}
        assert (kinds == {f"generation{own}"}) if own > 1 else not any("gen" in kind for kind in kinds)
        assert answer.body["complete"]


def test_a_wrong_token_is_refused(served: Served, tmp_path: Path) -> None:
    opened, token = citadel.Index.open(served.root), "a token to read with"
    engines = {"index": served.pool.open_engine}
    with running(opened, engines=engines, read_token=token) as server:
        for given, wanted in (("Bearer wrong", 401), ("", 401), (f"Bearer {token}", 200)):
            status, body = server.post("/v1/search", {"query": "fox"}, Authorization=given)
            assert status == wanted, body


def test_the_command(served: Served, tmp_path: Path) -> None:
    """`citadel serve --cluster local`: nothing listens for a dashboard, and SIGTERM ends everything."""
    process = subprocess.Popen(
        [sys.executable, "-m", "citadel.cli", "serve", str(served.root), "--port", "0", "--replicas", "1",
         "--shard-cores", "0.5", "--cluster", "local", "--no-access-log"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    line = json.loads(process.stderr.readline())
    assert line["event"] == "listening"
    with citadel.Client(line["url"]) as client:
        assert client.search("fox").complete
    family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    ports = [c.laddr for each in family for c in each.net_connections() if c.status == psutil.CONN_LISTEN]
    assert not [address for address in ports if address.port == 8265]
    assert [a.ip for a in ports if a.port == int(line["url"].rpartition(":")[2])] == ["127.0.0.1"]
    process.terminate()
    assert process.wait(60) == 0
    assert process.stderr.read().count("\n") <= 3
    wait_until(lambda: not [each for each in family if each.is_running()], 30)


@pytest.mark.night
def test_a_wrong_token_of_ray_is_refused(tmp_path: Path) -> None:
    """A cluster with tokens: builds, servers and the dashboard refuse none and a wrong one.

    The dashboard listens on the loopback interface alone."""
    right, wrong, port, dashboard = "a" * 64, "b" * 64, free_port(), free_port()
    corpus, shards = tmp_path / "corpus.jsonl", tmp_path / "root0"
    corpus.write_text('{"id": "d1", "text": "fox"}\n')
    environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": right}
    head = subprocess.Popen(
        [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", "--port", str(port),
         "--num-cpus", "2", "--include-dashboard", "true", "--dashboard-port", str(dashboard),
         "--object-store-memory", str(80 << 20)],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    cluster = ["--cluster", f"127.0.0.1:{port}"]
    try:
        wait_until(lambda: dashboard_status(dashboard, right) == 200, 60)
        for number, (token, code) in enumerate([(right, 0), (wrong, 6), (None, 6)]):
            given = environment | {"RAY_AUTH_TOKEN": token} if token else dict(os.environ)
            assert dashboard_status(dashboard, token) == (
                200 if token == right else 401 if token is None else 403
            )
            for command in (
                ["index", str(corpus), str(tmp_path / f"root{number}"), "--model", "bm25", "--shards", "1"],
                ["serve", str(shards), "--port", "0"],
            ):
                if (token, command[0]) == (right, "serve"):
                    continue  # it would run on
                done = subprocess.run(
                    [sys.executable, "-m", "citadel.cli", *command, *cluster],
                    env=given, capture_output=True, text=True, timeout=120, check=False,
                )  # fmt: skip
                assert done.returncode == code, done.stderr
                assert code == 0 or "RAY_AUTH_TOKEN" in done.stderr
        family = psutil.Process(head.pid).children(recursive=True)
        listening = [
            c.laddr for each in family for c in each.net_connections() if c.status == psutil.CONN_LISTEN
        ]
        assert {address.ip for address in listening if address.port == dashboard} == {"127.0.0.1"}
    finally:
        for process in [*psutil.Process(head.pid).children(recursive=True), psutil.Process(head.pid)]:
            process.kill()
        head.wait()


def dashboard_status(port: int, token: str | None) -> int:
    """The HTTP status of a request to Ray's dashboard; 0 if nothing listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(
            "GET", "/nodes?view=summary", headers={"Authorization": f"Bearer {token}"} if token else {}
        )
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])
