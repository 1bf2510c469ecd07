"""How long work tells of its progress: whoever starts it passes something that shows it, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

# Made with what is done, the noun of what is counted, and the total; called inside with how much is done.
Meter = Callable[[str, str, int], AbstractContextManager[Callable[[int], Any]]]


def silent(what: str, noun: str, total: int) -> AbstractContextManager[Callable[[int], Any]]:
    """A meter that shows nothing.

    >>> with silent("Encoding", "passages", 10) as progress:
    ...     progress(5)
    """
    del what, noun, total
    return nullcontext(lambda done: None)
