"""Boilerplate that documents of real collections consist of: "See also", "Page 3 of 12", "© 2019"."""

from __future__ import annotations

from importlib import resources

import numpy as np

PHRASES = tuple((resources.files("citadel.train") / "boilerplate.txt").read_text("utf-8").splitlines())
_SIGNS = [".", "..", "…", "-", "--", "—", "*", "***", "?", "!", "/", "•", "#", "###", "&", "=", "[]", "()"]
_NUMBERED = [
    "Page {}",
    "Page {} of {}",
    "Chapter {}",
    "Section {}.{}",
    "Figure {}",
    "Fig. {}",
    "Table {}",
    "Part {}",
    "No. {}",
    "{}.{}",
    "({})",
    "[{}]",
    "{}",
    "{}",
    "{}%",
    "Vol. {}, no. {}",
    "pp. {}–{}",
    "Step {}",
    "Version {}.{}",
    "Example {}",
    "Exercise {}.{}",
    "Item {}",
    "Note {}",
    "Eq. ({})",
    "Appendix {}",
]
_DATED = [
    "{}",
    "© {}",
    "(c) {}",
    "Copyright © {}",
    "{}-01-15",
    "January {}",
    "3 May {}",
    "{}/07/09",
    "Last updated: {}",
    "Published {}",
    "Posted in {}",
    "Received 12 March {}",
    "© {} The authors",
    "Revised {}",
    "Printed in {}",
]
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def draw_stub(rng: np.random.Generator) -> str:
    """Draw a text of boilerplate.

    >>> rng = np.random.default_rng(1)
    >>> all(0 < len(draw_stub(rng)) < 60 for _ in range(100))
    True
    """
    kind = rng.random()
    if kind < 0.55:
        return _cased(PHRASES[rng.integers(len(PHRASES))], rng)
    if kind < 0.75:
        number, other = (int(10 ** (3 * rng.random())) for _ in range(2))
        return _NUMBERED[rng.integers(len(_NUMBERED))].format(number, other)
    if kind < 0.87:
        return _DATED[rng.integers(len(_DATED))].format(rng.integers(1950, 2031))
    if kind < 0.96:
        return _SIGNS[rng.integers(len(_SIGNS))] * int(rng.integers(1, 4))
    return _LETTERS[rng.integers(len(_LETTERS))].upper()


def _cased(text: str, rng: np.random.Generator) -> str:
    ends = ("", "", "", ".", ":", "...", " »")
    return text + ends[rng.integers(len(ends))]
