"""Several indexes in one server: routes by name, tokens per index, CORS, one shared model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import citadel
from citadel.server.names import named_folders
from tests.support.models import ModelFolder
from tests.support.serving import TOKEN, Running, parsed, running, text_index

BIOLOGY = [{"id": "b1", "text": "Darwin proposed evolution of species."}]
READ_B, WRITE_B = "the read token of b", "the write token of b"


def pair(folder: Path) -> dict[str, citadel.Index]:
    return {"a": text_index(folder / "a"), "b": text_index(folder / "b", BIOLOGY)}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with running(pair(tmp_path)) as serving:
        yield serving


def client(server: Running, index: str | None, token: str | None = TOKEN) -> citadel.Client:
    return citadel.Client(server.client.url, token=token, index=index)


def get(server: Running, path: str, **headers: str) -> tuple[int, dict[str, Any]]:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return parsed(server.raw(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lines}\r\n".encode()))


def test_each_name_is_its_own_index(server: Running) -> None:
    a, b = client(server, "a"), client(server, "b")
    assert sorted(a.search("physics").ids) == ["d1", "d3"] and len(a) == 3
    assert b.search("darwin").ids == ["b1"] and len(b) == 1
    b.add([{"id": "b2", "text": "Mendel crossed peas."}], commit=True)
    assert (len(a), len(b)) == (3, 2) and a.get("b2") is None
    assert b.get("b2") is not None and b.explain("peas", "b2")["score"] > 0
    assert [row["name"] for row in server.client.indexes()] == ["a", "b"]
    assert [row["documents"] for row in a.indexes()] == [3, 2]
    assert list(b.ids()) == ["b1", "b2"] and b.count() == 2
    rebuild, arguments = b.__reduce__()
    assert rebuild(*arguments).search("peas").ids == ["b2"]


def test_changes_of_one_index_do_not_commit_another(server: Running) -> None:
    a, b = client(server, "a"), client(server, "b")
    a.add([{"id": "new", "text": "new physics"}])
    with pytest.raises(citadel.ServerError, match="nothing") as error:
        b.commit()
    assert error.value.code == "nothing_waiting" and a.get("new") is None
    a.commit()
    assert a.get("new") is not None


@pytest.mark.parametrize("path", ["/v1/search", "/v1/indexes/c/search", "/v1/indexes//search"])
def test_unknown_and_missing_names_are_404(server: Running, path: str) -> None:
    status, answer = server.post(path, {"query": "physics"})
    assert (status, answer["error"]["code"]) == (404, "index")


@pytest.mark.parametrize("path", ["/v1/indexes/a", "/v1/indexes/a/", "/v1/indexes/a/indexes/b/search"])
def test_paths_that_are_no_route_of_an_index(server: Running, path: str) -> None:
    assert server.post(path, {"query": "physics"})[1]["error"]["code"] == "not_found"


def test_names_in_the_client_are_checked() -> None:
    with pytest.raises(citadel.UsageError, match="cannot be the name of an index"):
        citadel.Client("http://127.0.0.1:8080", index="../a")


def test_one_index_answers_with_and_without_its_name(tmp_path: Path) -> None:
    with running({"only": text_index(tmp_path / "i")}) as server:
        assert client(server, "only").search("physics").ids == server.client.search("physics").ids
        assert "/v1/indexes/{name}/search" not in server.client.call("GET", "/openapi.json")["paths"]
        assert get(server, "/health/ready")[1] == {"status": "ready", "generation": 2}


def test_openapi_names_the_index_of_every_route(server: Running) -> None:
    schema = server.client.call("GET", "/openapi.json")
    assert "/v1/search" not in schema["paths"]
    for path in ("search", "documents", "delete", "commit", "rollback", "merge", "stats", "list"):
        for route in schema["paths"][f"/v1/indexes/{{name}}/{path}"].values():
            assert route["parameters"][0]["schema"]["enum"] == ["a", "b"]
    assert "/v1/indexes" in schema["paths"] and "/health/ready" in schema["paths"]
    assert get(server, "/health/ready")[1] == {"status": "ready"}


def test_metrics_and_routes_are_counted_by_route(server: Running) -> None:
    client(server, "b").search("darwin")
    text = server.server.context.metrics.text().decode()
    assert 'citadel_requests_total{method="POST",route="/v1/search",status="200"} 1.0' in text
    assert 'citadel_index_documents{index="b"} 1.0' in text


def test_tokens_of_one_index_do_not_open_another(tmp_path: Path) -> None:
    tokens = {"b": {"read": READ_B, "write": WRITE_B}}
    with running(pair(tmp_path), tokens=tokens) as server:
        assert client(server, "a", None).search("physics").ids
        for token in (None, TOKEN):
            with pytest.raises(citadel.ServerError) as error:
                client(server, "b", token).search("darwin")
            assert error.value.status == 401
        assert client(server, "b", READ_B).search("darwin").ids == ["b1"]
        for token in (TOKEN, READ_B):
            with pytest.raises(citadel.ServerError) as error:
                client(server, "b", token).delete(["b1"], commit=True)
            assert error.value.status == 401
        with pytest.raises(citadel.ServerError):
            client(server, "a", WRITE_B).delete(["d1"])
        assert [row["name"] for row in client(server, None, None).indexes()] == ["a"]
        assert [row["name"] for row in client(server, None, READ_B).indexes()] == ["a", "b"]
        assert get(server, "/metrics", Authorization=f"Bearer {TOKEN}")[0] == 401
        schema = server.client.call("GET", "/openapi.json")
        assert '"b"' not in json.dumps(schema["paths"]["/v1/indexes/{name}/search"]["post"]["parameters"])
        assert client(server, "b", WRITE_B).delete(["b1"], commit=True) == 1


def test_index_can_be_read_only_beside_another(tmp_path: Path) -> None:
    with running(pair(tmp_path), tokens={"b": {"write": None}}) as server:
        with pytest.raises(citadel.ServerError, match="read-only") as error:
            client(server, "b").delete(["b1"])
        assert error.value.status == 403
        assert client(server, "a").delete(["d1"], commit=True) == 1


def test_tokens_for_an_unknown_index_are_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(citadel.UsageError, match="no index has this name"),
        running(pair(tmp_path), tokens={"c": {"read": READ_B}}),
    ):
        pass


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["x/a.idx", "y/a.idx"], "two indexes are called a"),
        (["x/a", "a=y"], "two indexes are called a"),
        (["x/a", "b=x/../x/a"], "served as a already"),
        (["x/a b"], "cannot be the name"),
        (["x/" + "a" * 65], "cannot be the name"),
    ],
)
def test_names_must_differ_and_fit_a_url(arguments: list[str], problem: str) -> None:
    with pytest.raises(citadel.UsageError, match=problem):
        named_folders(arguments)


def serve(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "citadel.cli", "serve", *map(str, arguments), "--port", "0"]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def test_command_refuses_two_indexes_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    text_index(tmp_path / "a.idx"), text_index(tmp_path / "x" / "a.idx")
    refused = serve(tmp_path / "a.idx", tmp_path / "x" / "a.idx")
    assert refused.returncode == citadel.UsageError("").exit_code
    assert "two indexes are called a" in refused.stderr and "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"a": "token"}', '{"a": {"admin": "x"}}', '{"a": {"read": 1}}']
)
def test_command_refuses_a_malformed_token_file(tmp_path: Path, content: str) -> None:
    text_index(tmp_path / "a.idx")
    (tmp_path / "tokens.json").write_text(content)
    refused = serve(tmp_path / "a.idx", "--index-tokens", tmp_path / "tokens.json")
    assert refused.returncode == citadel.InputError("").exit_code and "tokens.json" in refused.stderr
    assert "Traceback" not in refused.stderr


ALLOWED = "https://example.org"


def cors_head(server: Running, method: str, origin: str, **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    request = (
        f"{method} /health/live HTTP/1.1\r\nHost: x\r\nOrigin: {origin}\r\nConnection: close\r\n{lines}\r\n"
    )
    return server.raw(request.encode()).partition(b"\r\n\r\n")[0].lower()


def test_cors_is_off_by_default(server: Running) -> None:
    assert b"access-control" not in cors_head(server, "GET", ALLOWED)
    preflight = cors_head(server, "OPTIONS", ALLOWED, Access_Control_Request_Method="POST")
    assert b"access-control" not in preflight and b" 405 " in preflight


def test_cors_allows_the_named_origin_only(tmp_path: Path) -> None:
    with running(pair(tmp_path), cors=(ALLOWED,)) as server:
        assert b"access-control-allow-origin: https://example.org" in cors_head(server, "GET", ALLOWED)
        preflight = cors_head(server, "OPTIONS", ALLOWED, Access_Control_Request_Method="POST")
        assert b" 204 " in preflight and b"authorization" in preflight
        for method in ("GET", "OPTIONS"):
            head = cors_head(server, method, "https://evil.example", Access_Control_Request_Method="POST")
            assert b"access-control-allow" not in head and b"vary: origin" in head


def test_cors_headers_are_on_errors_too(tmp_path: Path) -> None:
    with running(pair(tmp_path), cors=("*",)) as server:
        answer = server.raw(
            b"GET /no HTTP/1.1\r\nHost: x\r\nOrigin: https://a.b\r\nConnection: close\r\n\r\n"
        )
        assert b" 404 " in answer and b"access-control-allow-origin: *" in answer.lower()


@pytest.mark.parametrize("origin", ["example.org", "https://example.org/path", "null", "", "file:///x"])
def test_origins_are_checked_at_start(tmp_path: Path, origin: str) -> None:
    with pytest.raises(citadel.UsageError, match="is not an origin"), running(pair(tmp_path), cors=(origin,)):
        pass


def test_indexes_of_one_model_share_it_and_its_batches(
    tiny_model: ModelFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, query, indexes, alone = tiny_model("dynamic"), "gravity of evolution", {}, {}
    for name, texts in {"a": ["physics", "gravity"], "b": ["rome", "evolution"]}.items():
        built = citadel.Index.create(tmp_path / name, model=model)
        built.add([{"id": f"{name}{number}", "text": text} for number, text in enumerate(texts)])
        built.commit().close()
        indexes[name] = citadel.Index.open(tmp_path / name, model=model, threads=1)
        alone[name] = indexes[name].searcher().search(query).to_dicts()
    with running(indexes, workers=1) as server:
        first, second = (service.searcher.encoder for service in server.server.context.services)
        assert first is second
        sizes, encode = list[int](), type(first).encode_queries

        def counted(self: Any, texts: Any) -> Any:
            sizes.append(len(texts))
            return encode(self, texts)

        monkeypatch.setattr(type(first), "encode_queries", counted)
        names = ["a", "b"] * 40
        with ThreadPoolExecutor(16) as threads:
            answers = list(threads.map(lambda name: client(server, name).search(query).to_dicts(), names))
        assert max(sizes) > 1 and sum(sizes) == len(names)
        assert answers == [alone[name] for name in names]


def test_client_in_a_with_block_warns_of_uncommitted_changes(server: Running) -> None:
    with pytest.warns(citadel.UncommittedChangesWarning, match="uncommitted"), client(server, "b") as open:
        open.add([{"id": "b9", "text": "peas"}])
    with client(server, "b") as open:
        assert open.search("darwin").ids == ["b1"]


def test_rollback_drops_changes_and_their_tokens(server: Running) -> None:
    a, other = client(server, "a"), client(server, "a")
    a.add([{"id": "new", "text": "new physics"}])
    other.add([{"id": "other", "text": "other physics"}])
    assert a.rollback() == 2 and a.rollback() == 0
    with pytest.raises(citadel.ChangesLostError):
        other.commit()
    a.add([{"id": "later", "text": "later physics"}], commit=True)
    assert [a.get(id) is not None for id in ("new", "other", "later")] == [False, False, True]


def test_merge_leaves_one_segment_and_refuses_while_changes_wait(server: Running) -> None:
    a = client(server, "a")
    a.add([{"id": "new", "text": "new physics"}], commit=True)
    a.delete(["d2"], commit=True)
    a.add([{"id": "x", "text": "physics"}])
    with pytest.raises(citadel.ServerError) as error:
        a.merge()
    assert error.value.code == "changes_waiting"
    a.rollback()
    generation = a.merge()
    index = a.stats()["index"]
    assert (index["segments"], index["deleted"], index["generation"]) == (1, 0, generation)
    assert sorted(a.ids()) == ["d1", "d3", "new"]
    for permission in ("/v1/indexes/a/merge", "/v1/indexes/a/rollback"):
        assert server.post(permission, {})[0] == 401
