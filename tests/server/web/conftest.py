"""A served index and a headless browser for the tests of the page."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class Served(NamedTuple):
    url: str
    process: subprocess.Popen[str]


Serve = Callable[..., AbstractContextManager[Served]]


@contextlib.contextmanager
def serve_index(folder: Path, **environment: str) -> Iterator[Served]:
    """Run `citadel serve` in its own process on a free port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "citadel.cli", "serve", str(folder), "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    assert process.stderr is not None
    try:
        line = json.loads(process.stderr.readline())
        assert line["event"] == "listening", line
        # A full pipe would block the server.
        reader = threading.Thread(target=process.stderr.read, daemon=True)
        reader.start()
        yield Served(line["url"], process)
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stderr.close()


@pytest.fixture(scope="session")
def serve() -> Serve:
    """Start servers; skip if the extra [server] is not installed."""
    for name in ("citadel.server.run", "uvicorn"):
        with contextlib.suppress(ModuleNotFoundError):
            if importlib.util.find_spec(name):
                continue
        pytest.skip("the server is not installed: the extra [server]")
    return serve_index


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        pytest.skip("no Chromium is installed: `apt-get install chromium`")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=executable, args=["--no-sandbox"], timeout=120_000)
        yield chromium
        chromium.close()
