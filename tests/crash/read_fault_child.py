"""Make each read of document files fail in turn, and print the output of each command."""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import citadel
from citadel.cli.main import report, run

FAULTS = ctypes.CDLL(None)  # preloaded


def main() -> None:
    source, action, scratch = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    (scratch / "more.jsonl").write_text('{"id": "d0", "text": "owl"}\n{"id": "new", "text": "owl"}\n')
    outcomes = []
    number, reached = 1, True
    while reached:
        folder = Path(shutil.copytree(source, scratch / str(number)))
        code, output = attempt(actions(folder, scratch)[action], number)
        reached = FAULTS.fault_calls() >= number
        FAULTS.fault_arm(0)
        citadel.Index.open(folder).check(deep=True)  # nothing was lost or written partially
        result = sorted(citadel.Index.open(folder).searcher().search("owl", k=100).ids)
        outcomes.append([code, output, result])
        number += 1
    print(json.dumps(outcomes))


def actions(folder: Path, scratch: Path) -> dict[str, Callable[[], int]]:
    def get() -> int:
        return 0 if citadel.Index.open(folder).get("d1") else 1

    return {
        "search": lambda: run(["search", str(folder), "owl"]),
        "add": lambda: run(["add", str(folder), str(scratch / "more.jsonl")]),
        "merge": lambda: run(["merge", str(folder)]),
        "check": lambda: run(["check", str(folder), "--deep"]),
        "repair": lambda: run(["check", str(folder), "--repair"]),
        "get": get,
    }


def attempt(action: Callable[[], int], number: int) -> tuple[int, str]:
    """The exit code and the output on stderr and in the log."""
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    logging.getLogger("citadel").addHandler(handler)
    FAULTS.fault_arm(number)
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            try:
                code = action()
            except citadel.CitadelError as error:
                code = report(error)
    finally:
        logging.getLogger("citadel").removeHandler(handler)
    return code, output.getvalue()


if __name__ == "__main__":
    main()
