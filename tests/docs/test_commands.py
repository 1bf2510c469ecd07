"""Commands and Python blocks of the documentation run, page by page, in a user's folder."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.docs.pages import ROOT, RUN, Block, blocks, missing_package, prose, user_pages

PAGES = [
    page for page in user_pages() if any(b.language in RUN for b in blocks(page.read_text(encoding="utf-8")))
]
COMMAND = re.compile(r"^\s*(?:\$ )?(?:[A-Z_]+=\S+ )?(?:citadel|python|make|curl|torchrun|accelerate) ", re.M)
DEADLINE = 120  # seconds per block


def cases() -> list[ParameterSet]:
    """The pages with blocks to run; one with the comment `slow` runs in `make test-slow`."""
    slow = {page for page in PAGES if "<!-- slow -->" in page.read_text(encoding="utf-8")}
    return [
        pytest.param(page, marks=[pytest.mark.slow] if page in slow else [], id=str(page.relative_to(ROOT)))
        for page in PAGES
    ]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run(block: Block, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a block with a free port instead of 8080; kill the processes that it leaves."""
    port = str(free_port())
    text = block.text.replace("8080", port)
    command = [sys.executable, "-W", "error", "-c", text]
    if block.language == "sh":
        command = ["bash", "-euo", "pipefail", "-c", text]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CITADEL_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {
        **kept,
        "PATH": path,
        "CITADEL_PORT": port,
        "REPOSITORY": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=DEADLINE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, output)


@pytest.mark.parametrize("page", cases())
def test_blocks_run(page: Path, user_folder: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if name := missing_package(text):
        pytest.skip(f"{name} is not installed: the page names the extra")
    runnable = [block for block in blocks(text) if block.language in RUN]
    num_run = 0
    for block in runnable:
        if not block.skip:
            done = run(block, user_folder)
            assert done.returncode == 0, (
                f"{page.relative_to(ROOT)}:{block.line}\n{block.text}\n{done.stdout[-3000:]}"
            )
            num_run += 1
    if not num_run:
        pytest.skip("; ".join(sorted({block.skip for block in runnable})))


@pytest.mark.parametrize("page", user_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_in_runnable_blocks(page: Path) -> None:
    """Commands outside fenced `sh` or `python` blocks would never run; `make` is tested elsewhere."""
    text = page.read_text(encoding="utf-8")
    indented = [line for line in prose(text).splitlines() if line.startswith("    ")]
    unlabelled = [block.text for block in blocks(text) if block.language not in RUN]
    untested = COMMAND.findall("\n".join([*indented, *unlabelled]))
    assert [command for command in untested if "make" not in command] == []


def test_failing_block_is_detected(user_folder: Path) -> None:
    assert run(Block("sh", "citadel search nowhere relativity\ntrue\n", 1, ""), user_folder).returncode != 0
    assert run(Block("python", "raise SystemExit(3)", 1, ""), user_folder).returncode == 3
