"""The bar is there for long work at a terminal, and only there."""

from __future__ import annotations

import contextlib
import io
import sys
import time

import pytest

from citadel import progress
from citadel.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def work(what: str = "Indexing") -> None:
    with Progress(what, "documents", total=100) as bar:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            bar(50, 1234)


def test_a_file_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(sys, "stderr", out := io.StringIO())
    work()
    assert out.getvalue() == ""


def test_short_work_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", out := Terminal())
    with Progress("Indexing", total=2) as bar:
        bar(1)
    assert out.getvalue() == ""


def test_long_work_at_a_terminal_gets_a_bar_with_rate_and_eta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    monkeypatch.setattr(sys, "stderr", out := Terminal())
    work("Indexing [x]")
    shown = out.getvalue()
    assert "Indexing [x]" in shown
    assert "50%" in shown
    assert "documents/s" in shown
    assert "ETA" in shown


def test_an_error_takes_the_bar_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    bar = Progress("Indexing")
    with contextlib.suppress(ValueError), bar:
        time.sleep(0.2)
        raise ValueError
    assert bar._bar is None
