"""Files of the search page, loaded once from the package and served with an ETag and a strict CSP."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

CONTENT_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
)
_MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file of the page with its response headers."""

    body: bytes
    headers: dict[str, str]

    async def __call__(self, request: Request) -> Response:
        if request.headers.get("if-none-match") == self.headers["ETag"]:
            return Response(status_code=304, headers=self.headers)
        return Response(self.body, headers=self.headers)


def page_file(name: str, body: bytes) -> PageFile:
    """Build a file with headers that let browsers cache it and revalidate on each use.

    >>> page_file("app.js", b"").headers["Content-Type"]
    'text/javascript; charset=utf-8'
    """
    return PageFile(
        body,
        {
            "Content-Type": _MEDIA_TYPES[name.rpartition(".")[2]],
            "Content-Security-Policy": CONTENT_POLICY,
            "Cache-Control": "no-cache",
            "Cross-Origin-Opener-Policy": "same-origin",
            "ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
            "Referrer-Policy": "no-referrer",
        },
    )


def page_files() -> dict[str, PageFile]:
    """Return every file of the page by its URL path."""
    files: dict[str, PageFile] = {}
    for entry in sorted(
        resources.files("citadel.server").joinpath("web").iterdir(), key=lambda entry: entry.name
    ):
        if entry.name.rpartition(".")[2] in _MEDIA_TYPES:
            files[f"/{entry.name}"] = page_file(entry.name, entry.read_bytes())
    files["/"] = files.pop("/index.html")
    return files


def page_routes() -> list[Route]:
    """Return one route per file; no URL path is looked up on disk."""
    return [
        Route(path, file.__call__, methods=["GET"], include_in_schema=False)
        for path, file in page_files().items()
    ]
