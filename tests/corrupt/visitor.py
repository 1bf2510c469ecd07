"""Read hostile indexes in a child process and report the outcome, so that a crash is detected.

The process may allocate 64 MiB, or what a test allows, and records every file that it opens.
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
SECONDS = 10  # generous, because the machine may be busy


class Visit(NamedTuple):
    """Outcome of reading one index."""

    folder: str
    error: str | None
    file: str
    section: str
    message: str
    seconds: float
    outside: list[str]


def visit(folders: Iterable[Path], kind: str, engine: str, warm: Path, room: int = ROOM) -> list[Visit]:
    """Read the folders in a child process, which must not crash."""
    command = [
        sys.executable,
        "-m",
        "tests.corrupt.visitor",
        kind,
        engine,
        str(room),
        str(warm),
        *map(str, folders),
    ]
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


def complaint(result: Visit) -> str | None:
    """Describe an unacceptable outcome; None for an acceptable one."""
    if result.outside:
        return f"opened {result.outside}"
    if result.seconds > SECONDS:
        return f"took {result.seconds:.1f} s"
    if result.error == "FingerprintError" or (
        result.error == "UsageError" and "unknown analyser" in result.message
    ):
        return None  # not damage: another version may have that analyser
    if result.error == "FilterError":
        return None  # well-formed columns of other types, as of other documents
    if result.error not in (None, "CorruptIndexError", "UnknownFormatError"):
        return f"{result.error}: {result.message}"
    return (
        None
        if result.error is None or (result.file and result.section)
        else f"names no file and section: {result.message}"
    )


# ---- inside the process ------------------------------------------------------------------------------------

_opened: list[str] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if (
        event in ("open", "sqlite3.connect", "os.listdir")
        and arguments
        and isinstance(arguments[0], (str, bytes, Path))
    ):
        _opened.append(_resolved(os.fsdecode(arguments[0])))


def _resolved(path: str) -> str:
    """An absolute path; relative ones are in the index folder, the working directory."""
    path = path.removeprefix("file://").partition("?")[0]
    if match := re.match(r"/proc/self/fd/\d+", path):
        path = os.readlink(match[0]) + path[match.end() :]
    return os.path.abspath(path)


def _beyond(folder: str) -> list[str]:
    """The opened files that are neither in the folder nor Python's own."""
    own = (os.path.abspath(folder), sys.prefix, sys.base_prefix, str(ROOT / "src"), "/proc/self/")
    return [path for path in _opened if not path.startswith(own)]


def _limit_memory(room: int) -> None:
    if os.path.exists("/proc/self/status"):
        with open("/proc/self/status") as status:
            match = re.search(r"VmData:\s+(\d+) kB", status.read())
        assert match
        resource.setrlimit(resource.RLIMIT_DATA, (int(match[1]) * 1024 + room,) * 2)


def _read(folder: str, kind: str, engine: str) -> tuple[str | None, str, str, str]:
    import citadel
    from tests.corrupt import indexes

    try:
        indexes.ask(Path(folder), kind, engine)
        citadel.Index.open(folder).check(deep=True)
        citadel.Index.open(folder).stats()
    except Exception as error:  # reported, and judged by the parent
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
