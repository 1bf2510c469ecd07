"""Data shared by pytest workers is made once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.once import made_once

WORKER = """
import sys, time
from pathlib import Path
from tests.support.once import made_once

def make(folder):
    (folder / sys.argv[2]).touch()
    time.sleep(0.3)

assert len(list(made_once(Path(sys.argv[1]), make).iterdir())) == 1
"""


def test_processes_make_a_folder_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path / "shared")]
    root = Path(__file__).parents[2]
    workers = [subprocess.Popen([*command, str(number)], cwd=root) for number in range(3)]
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]


def test_failure_is_retried(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        raise ValueError

    with pytest.raises(ValueError):
        made_once(tmp_path / "shared", fail)
    assert made_once(tmp_path / "shared", lambda folder: (folder / "made").touch()) == tmp_path / "shared"
    assert (tmp_path / "shared" / "made").exists()
    made_once(tmp_path / "shared", fail)  # not called again
