"""A local hub server with the part of the HTTP interface that downloads need."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from tests.style.calls import ROOT

REVISION = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Repositories by name, the requested paths, and the server's URL."""

    def __init__(self, repositories: dict[str, Path]) -> None:
        self.repositories, self.requests = repositories, list[str]()
        self.url = ""

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body for a path."""
        self.requests.append(path)
        for name, folder in self.repositories.items():
            if path.startswith(f"/api/models/{name}/"):
                return self._json(self._about(name, folder, path))
            if path.startswith(f"/{name}/resolve/"):
                return self._file(folder / path.rsplit("/", 1)[1])
        return 404, {"X-Error-Code": "RepoNotFound"}, b""

    def _about(self, name: str, folder: Path, path: str) -> object:
        files = sorted(folder.iterdir())
        if "/tree/" in path:
            return [
                {"type": "file", "path": f.name, "size": f.stat().st_size, "oid": digest(f)} for f in files
            ]
        return {"id": name, "sha": REVISION, "siblings": [{"rfilename": file.name} for file in files]}

    def _json(self, body: object) -> tuple[int, dict[str, str], bytes]:
        return 200, {"Content-Type": "application/json"}, json.dumps(body).encode()

    def _file(self, file: Path) -> tuple[int, dict[str, str], bytes]:
        if not file.is_file():
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        return 200, {"ETag": f'"{digest(file)}"', "X-Repo-Commit": REVISION}, file.read_bytes()


def settings(url: str, home: Path) -> dict[str, str]:
    """Environment of a process that uses this hub instead of the real one."""
    others = {
        name: value for name, value in os.environ.items() if "proxy" not in name.lower() and name[:3] != "HF_"
    }
    hub = {
        "HF_ENDPOINT": url,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    return others | hub | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}


def digest(file: Path) -> str:
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()


@contextmanager
def serve(repositories: dict[str, Path]) -> Iterator[Hub]:
    """Run a hub on a free port."""
    hub = Hub(repositories)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, headers, body = hub.answer(urlsplit(self.path).path)
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield hub
        server.shutdown()
        thread.join()
