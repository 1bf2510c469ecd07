"""A process with torch imported that forks training runs, which may be killed while they write.

A line of JSON lists orders (config file, output folder, when to kill the run); the response lists exit codes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # otherwise every fork would spend two seconds on importing it
import torch.utils.tensorboard

from citadel.errors import CitadelError
from citadel.model import checkpoint
from citadel.train import state
from citadel.train.config import load_train_config
from citadel.train.loop import train


class Death:
    """Counts calls that write and kills the process at call number `at`; 0 never kills."""

    def __init__(self, at: int) -> None:
        self.at, self.calls = at, 0

    def watch(self, owner: Any, name: str, halves: str = "") -> None:
        """Count a function's calls; with `halves` a killed call leaves its file half written."""
        whole = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls != self.at:
                return whole(*args, **kwargs)
            if halves:
                whole(*args, **kwargs)
                target = args[1]
                os.truncate(target, os.path.getsize(target) // 2)
            return os.kill(os.getpid(), signal.SIGKILL)

        setattr(owner, name, counted)


def prepare(order: dict[str, Any]) -> Death:
    death = Death(order.get("kill", 0))
    for owner in (checkpoint, state):
        death.watch(owner, "save_file", "cut")
    death.watch(shutil, "copyfile", "cut")
    for owner, name in ((os, "fsync"), (os, "replace"), (shutil, "rmtree")):
        death.watch(owner, name)
    if "stop" in order:  # kill right after this number of checkpoints
        death_after(order["stop"])
    return death


def death_after(checkpoints: int) -> None:
    save: Callable[..., Path] = state.save
    written: list[Path] = []

    def counted(*args: Any) -> Path:
        written.append(save(*args))
        if len(written) == checkpoints:
            os.kill(os.getpid(), signal.SIGKILL)
        return written[-1]

    setattr(state, "save", counted)  # noqa: B010 - its type is wider


def run(order: dict[str, Any]) -> int:
    """Train in this process and return the exit code; write the number of writing calls to a file."""
    torch.set_num_threads(1)
    os.environ |= order.get("environment", {})
    error = os.open(order["out"] + ".stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(error, 2)
    death = prepare(order)
    try:
        train(load_train_config(order["config"]), order["out"], resume=order.get("resume", False))
    except CitadelError as stopped:
        print(stopped, file=sys.stderr)
        return stopped.exit_code
    Path(order["out"] + ".calls").write_text(str(death.calls))
    return 0


def fork(order: dict[str, Any]) -> int:
    process = os.fork()
    if process:
        return process
    code = 70  # of an unexpected error
    try:
        code = run(order)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    for line in sys.stdin:
        orders = json.loads(line)
        processes = [fork(order) for order in orders]
        codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    main()
