"""Forks writers that are killed at the n-th storage call of a kind, or after some milliseconds."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import sys
from typing import Any

from citadel import Index
from citadel.index.storage import FolderStorage
from tests.support.threads import write_with_threads
from tests.support.watched import Count, Kill, WatchedStorage
from tests.support.workload import CREATE, MEMORY, brief, endless


def write(order: dict[str, Any], out: int) -> None:
    """Run steps `first` … `last` − 1 (step 0 creates the index) and report each acknowledged one."""
    watcher = Kill(*order["kill"]) if order.get("kill") else Count()
    storage = WatchedStorage(FolderStorage(order["folder"]), watcher)
    if order.get("threads"):
        write_with_threads()
    os.write(out, b"started\n")
    first = order["first"]
    if first == 0:
        CREATE[order["kind"]](storage)
        os.write(out, b"0\n")
        first = 1
    index = Index.open(storage, memory=MEMORY)
    steps = brief() if order.get("brief") else endless()
    for number, step in enumerate(itertools.islice(steps, first - 1, order["last"] - 1), first):
        step.apply(index)
        os.write(out, f"{number}\n".encode())
    os.write(out, f"calls {json.dumps(watcher.calls)}\n".encode())


def fork(order: dict[str, Any]) -> tuple[int, int]:
    """Fork a writer; return its process id and the pipe with its output."""
    read, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            write(order, out)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(out)
    return pid, read


def run(order: dict[str, Any]) -> dict[str, Any]:
    pid, read = fork(order)
    output = os.read(read, 8)  # "started\n"
    if "milliseconds" in order:
        select.select([], [], [], order["milliseconds"] / 1000)
        os.kill(pid, signal.SIGKILL)  # not yet waited for, so the id cannot have been reused
    while piece := os.read(read, 65_536):
        output += piece
    os.close(read)
    _, status = os.waitpid(pid, 0)
    lines = output.decode().split("\n")[1:-1]
    calls = [json.loads(line[6:]) for line in lines if line.startswith("calls")]
    return {
        "acknowledged": [int(line) for line in lines if line.isdigit()],
        "status": os.waitstatus_to_exitcode(status),
        "calls": calls[0] if calls else {},
    }


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
