"""A process whose reads of document files fail one after the other, and what each command says of it."""

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
        code, said = attempt(actions(folder, scratch)[action], number)
        reached = FAULTS.fault_calls() >= number
        FAULTS.fault_arm(0)
        citadel.Index.open(folder).check(deep=True)  # nothing was lost or written by half
        result = sorted(citadel.Index.open(folder).searcher().search("owl", k=100).ids)
        outcomes.append([code, said, result])
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
    """The exit code, and all that was said on standard error and in the log."""
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    logging.getLogger("citadel").addHandler(handler)
    FAULTS.fault_arm(number)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            try:
                code = action()
            except citadel.CitadelError as error:
                code = report(error)
    finally:
        logging.getLogger("citadel").removeHandler(handler)
    return code, said.getvalue()


if __name__ == "__main__":
    main()
