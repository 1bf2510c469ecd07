"""The official conformance suite of MCP, where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import citadel
from tests.integrations.test_mcp import served

pytestmark = pytest.mark.slow

# The other scenarios call tools, prompts and resources of a test server, which this server does not have.
SCENARIOS = [
    "server-initialize",
    "ping",
    "tools-list",
    "tools-call-error",
    "server-sse-multiple-streams",
    "resources-list",
    "prompts-list",
    "dns-rebinding-protection",
]


@pytest.fixture(scope="module")
def suite() -> str:
    program = shutil.which("conformance")
    if program is None:
        pytest.skip(
            "no `conformance` on the path: npm install -g @modelcontextprotocol/conformance (Node 22)"
        )
    if subprocess.run([program, "--version"], capture_output=True, check=False).returncode != 0:
        pytest.skip("`conformance` does not start: it needs Node 22")
    return program


def test_conformance(suite: str, tmp_path: Path) -> None:
    with citadel.Index.create(tmp_path / "idx", model="bm25") as index:
        index.add([{"id": "d1", "text": "Einstein proposed relativity."}])
        index.commit()
    with served(tmp_path / "idx") as url:
        for scenario in SCENARIOS:
            command = [suite, "server", "--url", url, "--scenario", scenario]
            done = subprocess.run(
                command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False
            )
            output = done.stdout + done.stderr
            assert done.returncode == 0 and re.search(r"\b0 failed", output), f"{scenario}: {output[-2000:]}"
