"""Host header check on real sockets: DNS rebinding is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import citadel
from citadel.server.config import ServerConfig
from citadel.server.hosts import Hosts, host_name
from tests.cli.conftest import in_process
from tests.support.serving import Running, command, parsed, running, text_index

BODY = b'{"query": "physics"}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    index = text_index(tmp_path_factory.mktemp("hosts") / "i")
    with running(index, host_names=("search.example.org",)) as serving:
        yield serving


def search(server: Running, *hosts: str, version: str = "1.1", path: str = "/v1/search") -> tuple[int, str]:
    lines = "".join(f"Host: {host}\r\n" for host in hosts)
    head = f"POST {path} HTTP/{version}\r\n{lines}Content-Type: application/json\r\nConnection: close\r\n"
    status, answer = parsed(server.raw(f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY))
    return status, answer["error"]["code"] if status != 200 else ""


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8080",
        "localhost.",
        "127.0.0.1:80",
        "127.9.9.9",
        "[::1]:8080",
        "search.example.org:443",
    ],
)
def test_own_names_are_accepted(server: Running, host: str) -> None:
    assert search(server, host) == (200, "")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example.com",
        "evil.example.com:8080",
        "localhost.evil.example.com",
        "10.0.0.7",
        "[2001:db8::1]",
        "127.1",
    ],
)
def test_foreign_name_is_421(server: Running, host: str) -> None:
    assert search(server, host) == (421, "host")
    assert search(server, host, path="/v1/commit") == (421, "host")  # before the token


@pytest.mark.parametrize(
    "hosts", [[], ["localhost", "localhost"], [""], ["a b"], ["user@localhost"], ["[::1", "x"]]
)
def test_missing_duplicate_or_invalid_host_is_400(server: Running, hosts: list[str]) -> None:
    assert search(server, *hosts) == (400, "host")


def test_http_1_0_may_omit_the_host(server: Running) -> None:
    assert search(server, version="1.0") == (200, "")
    assert search(server, "evil.example.com", version="1.0") == (421, "host")


def test_every_route_checks_the_host(server: Running) -> None:
    for path in ("/", "/health/live", "/openapi.json", "/metrics"):
        answer = server.raw(
            f"GET {path} HTTP/1.1\r\nHost: evil.example.com\r\nConnection: close\r\n\r\n".encode()
        )
        assert parsed(answer)[0] == 421 and b"x-request-id: " in answer


def test_host_is_checked_before_the_token(tmp_path: Path) -> None:
    with running(text_index(tmp_path / "i"), read_token="a read token for tests") as server:
        assert search(server, "evil.example.com") == (421, "host")
        assert search(server, "localhost") == (401, "token")


def test_listening_on_every_address() -> None:
    """Any address literal is accepted: it cannot be rebound."""
    for listens_on in ("0.0.0.0", "::", ""):
        hosts = Hosts(listens_on)
        assert hosts.accepts("10.0.0.7") and hosts.accepts("[2001:db8::1]") and hosts.accepts("localhost")
        assert not hosts.accepts("evil.example.com")
    named = Hosts("192.168.1.5")
    assert named.accepts("192.168.1.5") and named.accepts("127.0.0.1") and not named.accepts("192.168.1.6")


@pytest.mark.parametrize("name", ["http://x", "x:80", "x/y", "", "a b"])
def test_invalid_host_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(citadel.UsageError, match="not a host name"):
        ServerConfig(host_names=(name,))
    assert host_name(name) != name


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        (["--host-name", "one.example", "--host-name", "two.example"], {}),
        ([], {"CITADEL_HOST_NAME": "one.example two.example"}),
    ],
)
def test_names_from_the_command_line(tmp_path: Path, options: list[str], environment: dict[str, str]) -> None:
    text_index(tmp_path / "i").close()
    with command(tmp_path / "i", *options, **environment) as (_, client):
        port = int(client.url.rpartition(":")[2])
        server = Running(client, None, None, port)  # type: ignore[arg-type]
        names = ("one.example", "two.example", "three.example")
        assert [search(server, name)[0] for name in names] == [200, 200, 421]
    assert in_process("serve", tmp_path / "i", "--port", 0, "--host-name", "http://x").code == 2
