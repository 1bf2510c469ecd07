"""The progress bar is shown only for long operations at a terminal."""

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


def test_no_output_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(sys, "stderr", out := io.StringIO())
    work()
    assert out.getvalue() == ""


def test_no_bar_for_short_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", out := Terminal())
    with Progress("Indexing", total=2) as bar:
        bar(1)
    assert out.getvalue() == ""


def test_bar_with_rate_and_eta_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_error_removes_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    bar = Progress("Indexing")
    with contextlib.suppress(ValueError), bar:
        time.sleep(0.2)
        raise ValueError
    assert bar._bar is None


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal whose bars appear at once; not a fixture, because pytest replaces stderr for the test."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(progress, "DELAY", 0.05)
    monkeypatch.setattr(sys, "stderr", out := Terminal())
    return out


def wait_for(text: str, out: Terminal) -> bool:
    """Wait up to ten seconds until a text is shown."""
    end = time.monotonic() + 10
    while text not in out.getvalue() and time.monotonic() < end:
        time.sleep(0.01)
    return text in out.getvalue()


def test_rate_and_time_left_appear_with_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    with Progress("Indexing", "documents", total=100) as bar:
        bar(25)  # once, before the bar is shown
        assert wait_for("documents/s", terminal)
        assert "25%" in terminal.getvalue() and "ETA 0:00:0" in terminal.getvalue()


def test_resumed_bar_starts_at_the_amount_done(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    with Progress("Indexing", "documents", total=100) as bar:
        bar.resume(60)
        assert wait_for("60%", terminal)
    assert "0%" not in terminal.getvalue().replace("60%", "")


def test_time_left_counts_from_the_resumption() -> None:
    bar = Progress("Indexing", "documents", total=100)
    bar.resume(60)
    bar.advance(20)
    assert bar._pace(40.0) == "0.5 documents/s  ETA 0:00:40"


def test_progress_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "LINE_INTERVAL", 0.0)
    assert progress.default_meter() is progress.ProgressLines
    with progress.ProgressLines("Encoding", "passages", 10) as done:
        done(5)
    assert capsys.readouterr().err.startswith("Encoding: 5 of 10 passages, ")
