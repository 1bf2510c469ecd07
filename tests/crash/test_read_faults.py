"""EIO in any read of SQLite gives exit code 6 and no advice to repair."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import citadel
from citadel.errors import ResourceError
from citadel.index.failures import read_failure
from tests.index.quick import Quick
from tests.support.children import ROOT, environment

COMMANDS = ("search", "add", "merge", "check", "repair", "get")


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A preloaded library that makes reads fail; needs a compiler and Linux."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler and /proc")
    library = tmp_path_factory.mktemp("shim") / "read_faults.so"
    source = ROOT / "tests" / "support" / "read_faults.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    return library


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five segments, so that the next commit merges them."""
    folder = tmp_path_factory.mktemp("faults") / "index"
    with citadel.Index.create(Quick(folder), analyser="plain") as index:
        for number in range(5):
            index.add([{"id": f"d{number}", "text": f"owl {number}"}])
            index.commit()
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_any_read_may_fail(command: str, shim: Path, index: Path, tmp_path: Path) -> None:
    environ = environment() | {"LD_PRELOAD": str(shim), "CITADEL_MODEL": "bm25"}
    arguments = [sys.executable, "-m", "tests.crash.read_fault_child", str(index), command, str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True, env=environ, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    outcomes = json.loads(done.stdout.splitlines()[-1])
    old, new = [f"d{number}" for number in range(5)], [*(f"d{number}" for number in range(5)), "new"]
    assert len(outcomes) > 5 and outcomes[-1][0] == 0  # the last run had no fault
    for code, output, result in outcomes[:-1]:
        assert "repair" not in output and "damaged" not in output and "unexpected" not in output, output
        assert result in ([old, new] if command == "add" else [old])
        if code == 0:  # the commit was durable before the fault
            assert (
                command == "add"
                and result == new
                and "merging is postponed" in output
                and "the disk failed" in output
            )
        else:
            assert code == 6 and "the disk failed" in output, (code, output)
    assert any(code == 6 for code, _, _ in outcomes)


def test_sqlite_errors_of_a_failing_disk() -> None:
    import sqlite3

    def error(code: int) -> sqlite3.OperationalError:
        made = sqlite3.OperationalError("disk I/O error")
        made.sqlite_errorcode = code
        return made

    disk = (
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_IOERR_READ,
        sqlite3.SQLITE_IOERR_CORRUPTFS,
        sqlite3.SQLITE_CANTOPEN,
    )
    for code in disk:
        assert isinstance(read_failure("docs", error(code)), ResourceError)
    for code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR_SHORT_READ):
        assert read_failure("docs", error(code)) is None
