"""One colour for each key of an explanation, and how strong it is: the same on a terminal, in HTML and on the page."""

from __future__ import annotations

from citadel.explain.result import Explanation

_GOLDEN_ANGLE = 137.508  # neighbours in this order are far apart on the colour wheel, however many there are


def hues(explanation: Explanation) -> list[int]:
    """The hue of each match, in degrees: by key, in the order of the query, so that it is the same for every hit.

    >>> from citadel.explain.result import Match
    >>> rows = [Match((), key, None, 1.0, 1.0, None, ()) for key in (7, 9, 7)]
    >>> found = Explanation(None, "d1", "", "", "static", None, 0.0, "off", 3.0, None, False, (), (), tuple(rows))
    >>> hues(found)
    [0, 138, 0]
    """
    order = {label: place for place, label in enumerate(dict.fromkeys(match.label for match in explanation.matches))}
    return [hue(order[match.label]) for match in explanation.matches]


def hue(place: int) -> int:
    """The hue of the key in that place.

    >>> [hue(place) for place in range(3)]
    [0, 138, 275]
    """
    return round(place * _GOLDEN_ANGLE) % 360


def strength(value: float, largest: float) -> float:
    """From 0.15, just visible, to 1.

    >>> strength(1.0, 2.0), strength(0.0, 0.0)
    (0.575, 0.15)
    """
    return 0.15 + 0.85 * min(max(value / largest, 0.0), 1.0) if largest > 0 else 0.15
