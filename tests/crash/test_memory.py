"""Building, merging and searching stay within the memory bound."""

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

POSTINGS = 2_000_000 if NIGHT else 1_000_000
WIDE = POSTINGS // 8 if NIGHT else POSTINGS // 4  # enough to be spilled more than once
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").is_file(), reason="/proc/self/status shows a process's memory on Linux only"
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Removed after the test: at night it has gigabytes."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.parametrize(
    ("megabytes", "postings", "dimension"),
    [(64, POSTINGS, 32), (128, POSTINGS, 32), (64, WIDE, 512)],
)
def test_vectors_keep_memory_bound(megabytes: int, postings: int, dimension: int, folder: Path) -> None:
    report = run("memory_child", folder, megabytes << 20, postings, dimension)
    assert report["documents"] >= postings // 40
    require_bound(report, megabytes)


def test_text_with_many_terms_keeps_memory_bound(folder: Path) -> None:
    documents, megabytes = (80_000, 64) if NIGHT else (40_000, 32)  # ten unique terms per document
    report = run("text_child", folder, megabytes << 20, documents)
    assert report["documents"] == documents
    extra = {what: peak - report["baseline"] for what, peak in report["peaks"].items()}
    assert {what: size >> 20 for what, size in extra.items() if size > 1.1 * (megabytes << 20)} == {}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_npz_corpus_keeps_memory_bound(method: int, folder: Path) -> None:
    small, large = folder / "small.npz", folder / "large.npz"
    write_npz(small, 4_000, 32, method)
    write_npz(large, POSTINGS, 32, method)  # 132 MB unpacked
    megabytes = 64 if NIGHT else 32
    report = run("npz_child", small, large, megabytes << 20)
    assert report["documents"] == POSTINGS // 40
    require_bound(report, megabytes)


def require_bound(report: dict[str, Any], megabytes: int) -> None:
    for what, peak in report["peaks"].items():
        allowed = 1.1 * ((megabytes << 20) + report["baseline"])
        assert peak <= allowed, (
            f"{what} took {(peak - report['baseline']) >> 20} MB, the bound is {megabytes} MB"
        )


def run(child: str, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", f"tests.crash.{child}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    print(report)
    return report
