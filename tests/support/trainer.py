"""A process that has imported torch and forks a training run for each order, which may be killed as it writes.

An order is a line of JSON: the config's file, the folder, and how to die; the answer says how each process ended.
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
import torch._dynamo  # else each fork would load it anew, for two seconds
import torch.utils.tensorboard

from citadel.errors import CitadelError
from citadel.model import checkpoint
from citadel.train import state
from citadel.train.config import load_train_config
from citadel.train.loop import train


class Death:
    """Counts the calls that write, and kills the process at one of them: 0 never comes."""

    def __init__(self, at: int) -> None:
        self.at, self.calls = at, 0

    def watch(self, owner: Any, name: str, halves: str = "") -> None:
        """Count a function's calls; `halves` names how its half-done work looks: a file cut in the middle."""
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
    if "stop" in order:  # right after so many checkpoints were written
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
    """Train in this process; its exit code. The number of writing calls goes into a file."""
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
    code = 70  # of an error nobody expected
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
        ends = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
        print(json.dumps(ends), flush=True)


if __name__ == "__main__":
    main()
