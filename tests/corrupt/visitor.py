"""A program that reads hostile indexes and tells what happened, so that a crash is seen from outside.

It may use 64 MiB more than it had at its start, or what a test allows, and every file it opens is noted.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
ROOM = 64 << 20
SECONDS = 10  # far above what is promised: a busy machine is not a failure


class Visit(NamedTuple):
    """What came of reading one index."""

    folder: str
    error: str | None
    file: str
    section: str
    message: str
    seconds: float
    outside: list[str]


def visit(folders: Iterable[Path], kind: str, engine: str, warm: Path, room: int = ROOM) -> list[Visit]:
    """Read the folders in a process of its own; each must end in an answer or in a CorruptIndexError."""
    command = [sys.executable, "-m", "tests.corrupt.visitor", kind, engine, str(room), str(warm), *map(str, folders)]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    visits = [Visit(*json.loads(line)) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"ended with {done.returncode} after {visits[-1:]}: {done.stderr[-2000:]}"
    return visits


def complaint(found: Visit) -> str | None:
    """What is wrong with how an index was read, if anything."""
    if found.outside:
        return f"opened {found.outside}"
    if found.seconds > SECONDS:
        return f"took {found.seconds:.1f} s"
    if found.error == "FingerprintError" or (found.error == "UsageError" and "unknown analyser" in found.message):
        return None  # not damage: another version may have that analyser
    if found.error not in (None, "CorruptIndexError", "UnknownFormatError"):
        return f"{found.error}: {found.message}"
    return None if found.error is None or (found.file and found.section) else f"names no place: {found.message}"


# ---- inside the process ---------------------------------------------------------------------------------------------

_opened: list[str] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if (
        event in ("open", "sqlite3.connect", "os.listdir")
        and arguments
        and isinstance(arguments[0], (str, bytes, Path))
    ):
        _opened.append(_resolved(os.fsdecode(arguments[0])))


def _resolved(path: str) -> str:
    """A path as it was meant when it was opened; names alone are those of the folder, which we are in."""
    path = path.removeprefix("file://").partition("?")[0]
    if match := re.match(r"/proc/self/fd/\d+", path):
        path = os.readlink(match[0]) + path[match.end() :]
    return os.path.abspath(path)


def _beyond(folder: str) -> list[str]:
    """What was opened that is neither in the folder nor Python's own."""
    own = (os.path.abspath(folder), sys.prefix, sys.base_prefix, str(ROOT / "src"), "/proc/self/")
    return [path for path in _opened if not path.startswith(own)]


def _limit_memory(room: int) -> None:
    if os.path.exists("/proc/self/status"):
        with open("/proc/self/status") as status:
            found = re.search(r"VmData:\s+(\d+) kB", status.read())
        assert found
        resource.setrlimit(resource.RLIMIT_DATA, (int(found[1]) * 1024 + room,) * 2)


def _read(folder: str, kind: str, engine: str) -> tuple[str | None, str, str, str]:
    import citadel
    from tests.corrupt import indexes

    try:
        indexes.ask(Path(folder), kind, engine)
        citadel.Index.open(folder).check(deep=True)
        citadel.Index.open(folder).stats()
    except Exception as error:  # every kind is told, and judged outside
        file, section = str(getattr(error, "file", "")), str(getattr(error, "section", ""))
        return type(error).__name__, file, section, str(error)[:300]
    return None, "", "", ""


def main() -> None:
    kind, engine, room, warm, *folders = sys.argv[1:]
    assert _read(warm, kind, engine)[0] is None
    _limit_memory(int(room))
    sys.addaudithook(_note)
    for folder in map(os.path.abspath, folders):
        os.chdir(folder)
        _opened.clear()
        start = time.perf_counter()
        result = _read(folder, kind, engine)
        print(json.dumps([folder, *result, time.perf_counter() - start, _beyond(folder)]), flush=True)


if __name__ == "__main__":
    main()
