"""Building, merging and searching stay within the memory they were given."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.npz_child import write as write_npz
from tests.support.children import ROOT, environment
from tests.support.seeds import NIGHT

POSTINGS = 50_000_000 if NIGHT else 1_000_000
WIDE = POSTINGS // 16 if NIGHT else POSTINGS // 4  # enough to be spilled more than once
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").is_file(), reason="/proc/self/status shows a process's memory on Linux only"
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Gone with the test: at night it holds gigabytes."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.parametrize(
    ("megabytes", "postings", "dimension"),
    [(64, POSTINGS, 32), (128, POSTINGS, 32), (64, WIDE, 512)],
)
def test_the_memory_bound_holds(megabytes: int, postings: int, dimension: int, folder: Path) -> None:
    found = run("memory_child", folder, megabytes << 20, postings, dimension)
    assert found["documents"] >= postings // 40
    require_bound(found, megabytes)


def test_the_memory_bound_holds_for_text_of_many_terms(folder: Path) -> None:
    documents, megabytes = (1_000_000, 64) if NIGHT else (40_000, 32)  # ten terms of its own per document
    found = run("text_child", folder, megabytes << 20, documents)
    assert found["documents"] == documents
    extra = {what: peak - found["baseline"] for what, peak in found["peaks"].items()}
    assert {what: size >> 20 for what, size in extra.items() if size > 1.1 * (megabytes << 20)} == {}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_npz_corpus_is_never_held_whole(method: int, folder: Path) -> None:
    small, large = folder / "small.npz", folder / "large.npz"
    write_npz(small, 4_000, 32, method)
    write_npz(large, POSTINGS, 32, method)  # 132 MB unpacked
    megabytes = 64 if NIGHT else 32
    found = run("npz_child", small, large, megabytes << 20)
    assert found["documents"] == POSTINGS // 40
    require_bound(found, megabytes)


def require_bound(found: dict[str, Any], megabytes: int) -> None:
    for what, peak in found["peaks"].items():
        allowed = 1.1 * ((megabytes << 20) + found["baseline"])
        assert peak <= allowed, f"{what} took {(peak - found['baseline']) >> 20} MB, it was given {megabytes}"


def run(child: str, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", f"tests.crash.{child}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    print(found)
    return found
