"""`citadel.AsyncClient`: the answers of `Client`, and cancelled calls that free the server's worker."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import citadel
from citadel.errors import InputError, ResourceError, UsageError
from citadel.server.config import Limits
from tests.index.quick import Quick
from tests.support.serving import TOKEN, Running, running, text_index, wait_until

DIMENSION = 8
LONG = {"vectors": {"vectors": [[1, 2] * 4] * 60_000}}  # times 400,000 vectors


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with running(text_index(tmp_path / "i")) as serving:
        yield serving


def client_of(server: Running, **options: Any) -> citadel.AsyncClient:
    return citadel.AsyncClient(server.client.url, token=TOKEN, **options)


def test_every_method(server: Running) -> None:
    async def use() -> None:
        async with client_of(server) as client:
            hits = await client.search("physics", 2, facets=["year"])
            assert hits.to_dicts() == server.client.search("physics", 2).to_dicts()
            assert hits.facets == {"year": [(1905, 1)]}
            ranking = await client.search_batch({"q": "physics"}, 2)
            assert ranking.to_dict() == server.client.search_batch({"q": "physics"}, 2).to_dict()
            assert (await client.explain("physics", "d1"))["score"] > 0
            assert (await client.explain_text("physics"))["tokens"]
            assert await client.add([{"id": "d4", "text": "new physics", "year": 1}]) == 1
            assert await client.commit() == server.service.generation
            assert await client.update_metadata("d4", {"year": 2}) == 1
            assert (await client.count({"year": 2}), await client.facets("year")) == (1, [(2, 1), (1905, 1)])
            assert await client.fields() == {"year": "number"}
            document = await client.get("d4")
            assert document is not None and document.metadata == {"year": 2}
            assert [id async for id in client.ids()] == ["d1", "d2", "d3", "d4"]
            assert [each.id async for each in client.documents({"year": 2})] == ["d4"]
            assert await client.delete(["d4"]) == 1
            assert await client.rollback() == 1
            assert await client.merge() == server.service.generation
            assert (await client.stats())["index"]["documents"] == 4
            assert [row["name"] for row in await client.indexes()] == ["index"]
            assert (await client.call("GET", "/v1/fields"))["fields"]

    asyncio.run(use())


def test_many_calls_at_a_time(server: Running) -> None:
    async def use() -> list[Any]:
        async with client_of(server, connections=8) as client:
            return await asyncio.gather(*(client.search("physics", 1) for _ in range(100)))

    assert {hits.ids[0] for hits in asyncio.run(use())} <= {"d1", "d3"}


def test_texts_that_were_not_sent_are_fetched_with_await(server: Running) -> None:
    async def use() -> None:
        async with client_of(server) as client:
            [hit] = await client.search("darwin", documents=False)
            with pytest.raises(UsageError, match=r"use `await client.get\('d2'\)`"):
                _ = hit.text
            document = await client.get(hit.id)
            assert document is not None and document.text == "Darwin proposed evolution."

    asyncio.run(use())


def test_errors(server: Running) -> None:
    async def use() -> None:
        client = client_of(server)
        with pytest.raises(InputError, match="the query is empty"):
            await client.search(" ")
        await client.close()
        with pytest.raises(UsageError, match="this client was closed: create another"):
            await client.search("physics")
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            nobody = citadel.AsyncClient(f"http://127.0.0.1:{unused.getsockname()[1]}")
            with pytest.raises(ResourceError, match="is the server running"):
                await nobody.search("physics")

    asyncio.run(use())
    with pytest.raises(UsageError, match="connections must be a whole number of 1 or more, not 0"):
        citadel.AsyncClient("http://127.0.0.1:8080", connections=0)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with one worker and a list of 400,000 vectors."""
    folder = tmp_path_factory.mktemp("long") / "i"
    index = citadel.Index.create(
        Quick(folder), fields={"lexical": DIMENSION}, router="all_to_all", fingerprint="x"
    )
    vectors = np.random.default_rng(1).normal(size=(400_000, DIMENSION)).astype(np.float32)
    offsets = np.arange(0, 400_001, 100)
    index.add_vectors({"ids": [f"d{n}" for n in range(4000)], "offsets": offsets, "vectors": vectors})
    with running(index.commit(), workers=1, limits=Limits(tokens=100_000, deadline_ms=60_000)) as serving:
        yield serving


def test_a_cancelled_call_frees_the_worker_of_the_server(slow: Running) -> None:
    async def use() -> float:
        async with client_of(slow) as client:
            before = slow.taken
            task = asyncio.create_task(client.call("POST", "/v1/search", LONG))
            while slow.taken == before:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            start = time.perf_counter()
            await client.search_vectors(vectors=[[1.0] * DIMENSION])
            return time.perf_counter() - start

    assert asyncio.run(use()) < 3  # the scan alone takes many seconds


def test_cancelling_many_calls_leaves_threads_and_connections_as_they_were(server: Running) -> None:
    async def use() -> int:
        async with client_of(server, connections=4) as client:
            for number in range(300):
                task = asyncio.create_task(client.search("physics"))
                await asyncio.sleep(0.001 * (number % 3))
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            assert (await client.search("darwin")).ids == ["d2"]
            return sum(thread.name.startswith("citadel-client") for thread in threading.enumerate())

    assert asyncio.run(use()) <= 4
    wait_until(lambda: not any(t.name.startswith("citadel-client") for t in threading.enumerate()))
