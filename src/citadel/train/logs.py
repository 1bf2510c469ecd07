"""Training log: JSON lines, TensorBoard if installed, and standard error."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Self

LOG_FILE = "log.jsonl"


class Log:
    """Log of a run in its folder; only the leading process writes.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with Log(folder, quiet=True) as log:
    ...     log(5, {"loss": 1.5})
    >>> json.loads((folder / LOG_FILE).read_text())["loss"]
    1.5
    """

    def __init__(self, folder: Path, *, quiet: bool = False, enabled: bool = True) -> None:
        self._quiet, self._start = quiet, time.monotonic()
        self._file = (folder / LOG_FILE).open("a", encoding="utf-8") if enabled else None
        self._board = _tensorboard(folder) if enabled else None

    def __call__(self, step: int, figures: dict[str, float]) -> None:
        if self._file is None:
            return
        record = {"step": step, "seconds": round(time.monotonic() - self._start, 2), **figures}
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in figures.items():
                self._board.add_scalar(name, value, step)
        if not self._quiet:
            shown = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
            print(f"step {step}  {shown}", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()


def _tensorboard(folder: Path) -> Any:
    """TensorBoard writer, or None if TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"))
