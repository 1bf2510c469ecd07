"""Run the command line: arguments in; exit code, stdout and stderr out."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from citadel.cli.main import run


class Done(NamedTuple):
    code: int
    out: str
    err: str


Citadel = Callable[..., Done]


@pytest.fixture
def citadel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Citadel:
    """Run one command line in this process."""

    def call(*arguments: object, stdin: bytes = b"", code: int | None = 0) -> Done:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        done = Done(run([str(argument) for argument in arguments]), *capsys.readouterr())
        assert "Traceback" not in done.err
        if code is not None:
            assert done.code == code, done
        if done.code not in (0, 130):
            last = done.err.splitlines()[-1]
            assert last.startswith("citadel: "), done.err
        return done

    return call


def start(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    """Run one command line in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "citadel.cli", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )


def in_process(*arguments: object, **environment: str) -> Done:
    """Run one command line in a process of its own, to its end."""
    process = start(*arguments, **environment)
    out, err = process.communicate(timeout=120)
    return Done(process.returncode, out, err)


def write_jsonl(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Three documents, each with a unique word and one shared word."""
    rows: list[dict[str, object]] = [
        {"id": "d1", "title": "Relativity", "text": "Einstein proposed relativity in physics.", "year": 1905},
        {"id": "d2", "text": "Darwin proposed evolution."},
        {"id": "d3", "text": "Newton proposed gravity in physics."},
    ]
    return write_jsonl(tmp_path / "corpus.jsonl", rows)


@pytest.fixture
def index(tmp_path: Path, corpus: Path, citadel: Citadel) -> Path:
    """An index of the three documents."""
    citadel("index", corpus, tmp_path / "idx")
    return tmp_path / "idx"
