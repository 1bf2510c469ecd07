"""One colour per key of an explanation and its strength, shared by terminal, HTML and web page."""

from __future__ import annotations

from citadel.explain.result import Explanation

_GOLDEN_ANGLE = 137.508  # keeps neighbouring keys far apart on the colour wheel, however many there are


def hues(explanation: Explanation) -> list[int]:
    """The hue of each match in degrees, by key in query order, so that it is the same for every hit.

    >>> from citadel.explain.result import Match
    >>> rows = [Match((), key, None, 1.0, 1.0, None, ()) for key in (7, 9, 7)]
    >>> fields = (None, "d1", "", "", "static", None, 0.0, "off", 3.0, None, False)
    >>> hues(Explanation(*fields, query_tokens=(), document_tokens=(), matches=tuple(rows)))
    [0, 138, 0]
    """
    labels = dict.fromkeys(match.label for match in explanation.matches)
    order = {label: position for position, label in enumerate(labels)}
    return [hue(order[match.label]) for match in explanation.matches]


def hue(position: int) -> int:
    """The hue of the key at a position.

    >>> [hue(position) for position in range(3)]
    [0, 138, 275]
    """
    return round(position * _GOLDEN_ANGLE) % 360


def strength(value: float, largest: float) -> float:
    """Scale a value to 0.15 (just visible) … 1.

    >>> strength(1.0, 2.0), strength(0.0, 0.0)
    (0.575, 0.15)
    """
    return 0.15 + 0.85 * min(max(value / largest, 0.0), 1.0) if largest > 0 else 0.15
