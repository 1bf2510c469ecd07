"""`citadel demo`: index the documentation of Python's own library and ask it three questions."""

from __future__ import annotations


def demo() -> None:
    """Index the documentation of the installed Python's library and answer three questions."""
    from citadel.demo import run_demo

    run_demo()
