"""`train`, `mine`, `score`, `measure` and `export` where typer is not installed, as on a bare GPU machine."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from citadel.cli.support.run_training import run_measure, run_mine, run_score, run_train
from citadel.errors import CitadelError

_Options = list[tuple[tuple[str, ...], dict[str, object]]]
_DATA: _Options = [(("--data",), {"default": ""}), (("--passages",), {"default": ""})]
_DEVICE: _Options = [(("--device",), {"default": "auto"})]
_OUT: _Options = [(("--out",), {"required": True})]
_VERBS: dict[str, _Options] = {
    "train": [
        (("config",), {}),
        *_OUT,
        (("--resume",), {"action": "store_true"}),
        (("--device",), {"default": ""}),
        (("--steps",), {"type": int, "default": 0}),
    ],
    "mine": [
        (("--model",), {"required": True}),
        *_OUT,
        *_DATA,
        (("--pairs",), {"default": ""}),
        (("-k",), {"type": int, "default": 100}),
        (("--margin",), {"type": float, "default": None}),
        *_DEVICE,
        (("--threads",), {"type": int, "default": None}),
    ],
    "score": [
        (("--teacher",), {"required": True}),
        (("--negatives",), {"required": True}),
        *_OUT,
        *_DATA,
        (("--kind",), {"default": "cross"}),
        (("--keep",), {"type": int, "default": 32}),
        *_DEVICE,
        (("--fuse",), {"default": ""}),
    ],
    "measure": [
        (("model",), {"nargs": "?", "default": ""}),
        (("--collection",), {"required": True}),
        (("--out",), {"default": ""}),
        (("--name",), {"default": ""}),
        (("--tau",), {"type": float, "action": "append"}),
        (("--codec",), {"action": "append"}),
        (("--semantic",), {"action": "append"}),
        (("-k",), {"type": int, "default": 100}),
        (("--engine",), {"default": "auto"}),
        *_DEVICE,
        (("--fill",), {"default": ""}),
        (("--split",), {"default": ""}),
        (("--latency",), {"type": int, "default": 0, "dest": "timed"}),
        (("--overwrite",), {"action": "store_true"}),
        (("--threads",), {"type": int, "default": None}),
    ],
    "export": [
        (("checkpoint",), {}),
        *_OUT,
        (("--precision",), {"default": "int8"}),
        (("--overwrite",), {"action": "store_true"}),
    ],
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; the exit code.

    >>> main(["train", "no-such.toml", "--out", "model"])
    4
    """
    options = vars(_parser().parse_args(arguments))
    verb = options.pop("verb")
    try:
        _RUN[verb](**options)
    except CitadelError as error:
        return _fail(str(error), error.exit_code)
    except MemoryError:
        return _fail("out of memory; give a smaller batch", 6)
    except OSError as error:
        return _fail(f"{error.filename or ''}: {os.strerror(error.errno or 0).lower()}", 4)
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="citadel", description="Without typer: training alone.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, options in _VERBS.items():
        inner = verbs.add_parser(verb)
        for names, settings in options:
            inner.add_argument(*names, **settings)  # type: ignore[arg-type]
    return parser


def _export(checkpoint: str, out: str, precision: str, overwrite: bool) -> None:
    from citadel.model.export import export

    for folder in export(checkpoint, out, precision, overwrite, print):
        print(folder)


def _fail(message: str, code: int) -> int:
    print(f"citadel: {message}", file=sys.stderr)
    return code


_RUN: dict[str, Callable[..., None]] = {
    "train": run_train,
    "mine": run_mine,
    "score": run_score,
    "measure": run_measure,
    "export": _export,
}
