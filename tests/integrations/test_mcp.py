"""The MCP server through the SDK's own client: in memory, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

import citadel

pytest.importorskip("mcp", reason="mcp is not installed: pip install 'citadel-ir[mcp]'")

import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from citadel.cli.main import run
from citadel.integrations.mcp_http import make_app
from citadel.integrations.mcp_server import MAX_HITS, make_server
from citadel.server.config import ServerConfig

T = TypeVar("T")
READ, WRITE = "a read token for tests", "a write token for tests"
DOCUMENTS: list[dict[str, Any]] = [
    {"id": "d1", "title": "Relativity", "text": "Einstein proposed relativity.", "year": 1905},
    {"id": "d2", "text": "Darwin proposed evolution.", "year": 1859},
    {"id": "d3", "text": "Curie isolated radium.", "lang": "en"},
]


@pytest.fixture
def index(tmp_path: Path) -> citadel.Index:
    index = citadel.Index.create(tmp_path / "idx", model="bm25")
    index.add(DOCUMENTS)
    index.commit().rollback()
    return index


def ask(server: Any, talk: Callable[[Client], Awaitable[T]], **options: Any) -> T:
    """Talk to a server, and return what was said."""

    async def connect() -> T:
        async with Client(server, **options) as client:
            return await talk(client)

    return asyncio.run(connect())


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    """The structured result of a tool, whose text is the same JSON."""
    result: Any = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    [text] = result.content
    assert json.loads(text.text) == result.structured_content
    return result.structured_content


async def failure(client: Client, tool: str, **arguments: Any) -> str:
    """The message of a tool that fails; an unknown tool is an error of the call in some protocol versions."""
    try:
        result: Any = await client.call_tool(tool, arguments)
    except MCPError as error:
        return str(error)
    assert result.is_error
    return str(result.content[0].text)


async def tool_names(client: Client) -> list[str]:
    return [tool.name for tool in (await client.list_tools()).tools]


# -- in memory


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_search_equals_that_of_the_index(index: citadel.Index, mode: str) -> None:
    async def talk(client: Client) -> Any:
        return await call(client, "search", query="who proposed relativity", k=2)

    found = ask(make_server(index), talk, mode=mode)
    hits = index.search("who proposed relativity", 2)
    assert [(hit["id"], hit["score"], hit["rank"]) for hit in found["hits"]] == [
        (hit.id, hit.score, hit.rank) for hit in hits
    ]
    best = found["hits"][0]
    assert best["title"] == "Relativity" and best["metadata"] == {"year": 1905}
    assert best["text"] == DOCUMENTS[0]["text"] and best["is_whole"] and best["relevance"] is None


def test_options_of_search(index: citadel.Index) -> None:
    async def talk(client: Client) -> list[Any]:
        query = {"query": "proposed"}
        return [
            await call(client, "search", **query, filter={"year": {"$lt": 1900}}),
            await call(client, "search", **query, offset=1),
            await call(client, "search", **query, k=1, characters=6),
            await call(client, "search", **query, group_by="year", filter={"year": {"$exists": True}}),
            await call(client, "search", query="zebra"),
        ]

    filtered, skipped, short, grouped, nothing = ask(make_server(index), talk)
    assert [hit["id"] for hit in filtered["hits"]] == ["d2"]
    assert [hit["rank"] for hit in skipped["hits"]] == [2]
    assert len(short["hits"][0]["text"]) == 6 and not short["hits"][0]["is_whole"]
    assert len(grouped["hits"]) == 2 and nothing["hits"] == []


def test_get_reads_a_long_text_in_parts(index: citadel.Index) -> None:
    text = "".join(f"word{number} " for number in range(100))
    index.add([{"id": "long", "text": text}])
    index.commit()

    async def talk(client: Client) -> str:
        parts, start = [], 0
        while start is not None:
            part = await call(client, "get", id="long", start=start, characters=300)
            assert part["total_characters"] == len(text)
            parts.append(part["text"])
            start = part["next_start"]
        assert len(parts) > 2
        return "".join(parts)

    assert ask(make_server(index), talk) == text


def test_explanation_adds_up(index: citadel.Index) -> None:
    async def talk(client: Client) -> Any:
        return await call(client, "explain", query="who proposed relativity", id="d1")

    explained = ask(make_server(index), talk)
    assert sum(match["gain"] for match in explained["matches"]) == pytest.approx(explained["score"])
    assert [match["query"] for match in explained["matches"]] == ["relativity", "proposed"]
    assert "Einstein" in explained["snippet"]


def test_stats_list_the_fields(index: citadel.Index) -> None:
    async def talk(client: Client) -> Any:
        return client.instructions, await call(client, "stats")

    instructions, stats = ask(make_server(index), talk)
    assert stats["documents"] == 3 and stats["fields"] == {"year": "number", "lang": "string"}
    assert stats["figures"]["router"] == stats["router"] == "bm25"
    assert "3 documents" in instructions and "year (number)" in instructions


def test_every_tool_has_schemas_and_hints(index: citadel.Index) -> None:
    async def talk(client: Client) -> Any:
        return (await client.list_tools()).tools

    tools = {tool.name: tool for tool in ask(make_server(index, write=True), talk)}
    assert list(tools) == ["search", "get", "explain", "stats", "add", "delete"]
    for name, tool in tools.items():
        assert tool.description and "\n" not in tool.description and tool.output_schema is not None
        assert all("description" in field for field in tool.input_schema["properties"].values())
        assert tool.annotations.read_only_hint is (name not in ("add", "delete"))
    assert tools["search"].input_schema["properties"]["k"]["maximum"] == MAX_HITS


def test_changes_are_committed_and_release_the_lock(index: citadel.Index) -> None:
    path = index.search("proposed")._snapshot.storage.location

    async def talk(client: Client) -> None:
        document = {
            "id": "d4",
            "text": "Pasteur disproved spontaneous generation.",
            "metadata": {"year": 1859},
        }
        added = await call(client, "add", documents=[document, {"text": "Rome"}])
        assert added["added"] == 2 and len(added["generated_ids"]) == 1
        assert citadel.Index.open(path).get("d4").metadata == {"year": 1859}  # type: ignore[union-attr]
        with citadel.Index.open(path) as other:  # another writer is not locked out
            other.delete("d3")
            other.commit()
        assert (await call(client, "delete", ids=["d4", "unknown"]))["deleted"] == 1
        assert (await call(client, "stats"))["documents"] == 3
        assert "there is no document 'd4'" in await failure(client, "get", id="d4")

    ask(make_server(index, write=True), talk)


def test_all_documents_are_added_or_none(index: citadel.Index) -> None:
    async def talk(client: Client) -> str:
        return await failure(client, "add", documents=[{"id": "d9", "text": "x"}, {"id": "", "text": "y"}])

    assert "id is empty" in ask(make_server(index, write=True), talk)
    assert "d9" not in index.refresh() and len(index) == 3


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("search", {"query": "x", "filter": {"year": {"$near": 1}}}, "unknown operator"),
        ("search", {"query": " "}, "query"),
        ("search", {"query": "x", "k": MAX_HITS + 1}, "less than or equal"),
        ("search", {"query": "x" * 5000}, "at most 4096"),
        ("get", {"id": "d9"}, "there is no document"),
        ("explain", {"query": "x", "id": "d9"}, "d9"),
        ("delete", {"ids": ["d1"]}, "delete"),
    ],
)
def test_errors_are_results_that_a_model_can_read(
    index: citadel.Index, tool: str, arguments: dict[str, Any], message: str
) -> None:
    async def talk(client: Client) -> str:
        return await failure(client, tool, **arguments)

    assert message in ask(make_server(index), talk)


def test_changes_of_another_process_are_seen(index: citadel.Index, tmp_path: Path) -> None:
    server = make_server(tmp_path / "idx")
    index.add([{"id": "new", "text": "Pasteur"}])
    index.commit()

    async def talk(client: Client) -> Any:
        return await call(client, "search", query="pasteur")

    assert [hit["id"] for hit in ask(server, talk)["hits"]] == ["new"]


def test_sharded_index_is_read_only(index: citadel.Index, tmp_path: Path) -> None:
    index.rollback()
    root = tmp_path / "shards"
    assert run(["shard", str(tmp_path / "idx"), "--shards", "2", "--output", str(root)]) == 0

    async def talk(client: Client) -> Any:
        return await call(client, "search", query="radium"), await failure(client, "delete", ids=["d1"])

    found, message = ask(make_server(root, write=True), talk)
    assert [hit["id"] for hit in found["hits"]] == ["d3"] and "cannot be changed in place" in message


def test_missing_index_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(citadel.IndexNotFoundError):
        make_server(tmp_path / "misspelt")


# -- over stdio


def environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CITADEL_")}
    return kept | {"OMP_NUM_THREADS": "1"} | variables


def test_over_stdio(index: citadel.Index, tmp_path: Path) -> None:
    arguments = ["-m", "citadel", "mcp", str(tmp_path / "idx"), "--write"]
    program = StdioServerParameters(command=sys.executable, args=arguments, env=environment())

    async def talk(client: Client) -> Any:
        about = client.server_info
        assert about is not None and (about.name, about.version) == ("citadel", citadel.__version__)
        await call(client, "add", documents=[{"id": "d4", "text": "Pasteur"}])
        return await tool_names(client), await call(client, "search", query="pasteur")

    names, found = ask(stdio_client(program), talk)
    assert names == ["search", "get", "explain", "stats", "add", "delete"]
    assert [hit["id"] for hit in found["hits"]] == ["d4"]


def test_command_reports_a_missing_index(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "citadel", "mcp", str(tmp_path / "misspelt")]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 4 and done.stdout == "" and "misspelt" in done.stderr


# -- over HTTP


@contextmanager
def served(folder: Path, *options: str, **variables: str) -> Iterator[str]:
    """The URL of `citadel mcp --http`; it must end with 0 after SIGTERM."""
    command = [sys.executable, "-m", "citadel", "mcp", str(folder), "--http", "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(**variables))
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        match = re.search(r"http://\S+", line)
        assert match is not None, line + process.stderr.read()
        yield match[0]
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, process.stderr.read()
    finally:
        process.kill()
        process.communicate()


def over_http(url: str, talk: Callable[[Client], Awaitable[T]], token: str = "") -> T:
    async def connect() -> T:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            return await talk(client)

    return asyncio.run(connect())


def post(url: str, **headers: str) -> int:
    """The status of a call without an SDK."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    accepted = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}
    return httpx2.post(url, json=body, headers=accepted | headers).status_code


def test_http_without_tokens_reads_only(index: citadel.Index, tmp_path: Path) -> None:
    async def talk(client: Client) -> Any:
        return await tool_names(client), await call(client, "search", query="radium")

    with served(tmp_path / "idx") as url:
        names, found = over_http(url, talk)
        assert names == ["search", "get", "explain", "stats"]
        assert [hit["id"] for hit in found["hits"]] == ["d3"]
        assert post(url) == 200
        assert post(url, Host="evil.example.com") == 421
        assert post(url, Origin="http://evil.example.com") == 403
        assert post(url, Origin="http://localhost:3000") == 200


def test_http_tokens(index: citadel.Index, tmp_path: Path) -> None:
    async def add(client: Client) -> Any:
        return await call(client, "add", documents=[{"id": "d4", "text": "Pasteur"}])

    async def unknown_tool(client: Client) -> str:
        return await failure(client, "add", documents=[{"id": "d4", "text": "Pasteur"}])

    async def search(client: Client) -> Any:
        return await call(client, "search", query="pasteur")

    tokens = {"CITADEL_READ_TOKEN": READ, "CITADEL_WRITE_TOKEN": WRITE}
    with served(tmp_path / "idx", "--write", **tokens) as url:
        assert post(url) == post(url, Authorization="Bearer wrong") == 401
        assert over_http(url, tool_names, READ) == ["search", "get", "explain", "stats"]
        assert "add" in over_http(url, unknown_tool, READ)
        assert over_http(url, add, WRITE)["added"] == 1
        assert [hit["id"] for hit in over_http(url, search, READ)["hits"]] == ["d4"]


def test_writing_over_http_needs_a_token(index: citadel.Index) -> None:
    with pytest.raises(citadel.UsageError, match="CITADEL_WRITE_TOKEN"):
        make_app(index, ServerConfig(), write=True)


@pytest.mark.slow
def test_interrupted_server_exits_with_0(index: citadel.Index, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "citadel", "mcp", str(tmp_path / "idx"), "--http", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment())
    assert process.stderr is not None and "listening" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[1] == "" and process.returncode == 0


@pytest.mark.slow
def test_port_in_use_is_a_usage_error(index: citadel.Index, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        command = [sys.executable, "-m", "citadel", "mcp", str(tmp_path / "idx"), "--http", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 2 and "another program listens" in done.stderr
