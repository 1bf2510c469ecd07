"""The page, served from the package: read once, told apart by a hash, and bound to its own origin."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "ico": "image/x-icon",
    "js": "text/javascript; charset=utf-8",
    "png": "image/png",
    "svg": "image/svg+xml",
}
_PLACEHOLDER = b"<!doctype html><title>citadel</title><p>This server answers; its page is not part of this build.</p>\n"


@dataclass(frozen=True, slots=True)
class File:
    """One file of the page."""

    body: bytes
    headers: dict[str, str]

    async def __call__(self, request: Request) -> Response:
        if request.headers.get("if-none-match") == self.headers["ETag"]:
            return Response(status_code=304, headers=self.headers)
        return Response(self.body, headers=self.headers)


def file(name: str, body: bytes) -> File:
    """A file with its headers: browsers keep it and ask each time whether it has changed.

    >>> file("app.js", b"").headers["Content-Type"]
    'text/javascript; charset=utf-8'
    """
    return File(
        body,
        {
            "Content-Type": _TYPES[name.rpartition(".")[2]],
            "Content-Security-Policy": POLICY,
            "Cache-Control": "no-cache",
            "Cross-Origin-Opener-Policy": "same-origin",
            "ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
            "Referrer-Policy": "no-referrer",
        },
    )


def page_files() -> dict[str, File]:
    """Every file of the page by its path."""
    folder = resources.files("citadel.server").joinpath("web")
    found: dict[str, File] = {}
    if folder.is_dir():
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if entry.is_file() and entry.name.rpartition(".")[2] in _TYPES:
                found[f"/{entry.name}"] = file(entry.name, entry.read_bytes())
    found["/"] = found.pop("/index.html", file("index.html", _PLACEHOLDER))
    return found


def page_routes() -> list[Route]:
    """A route for each file, and none for anything else: no path is ever looked up on the disk."""
    return [
        Route(path, found.__call__, methods=["GET"], include_in_schema=False) for path, found in page_files().items()
    ]
