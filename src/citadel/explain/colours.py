"""One colour for each key of an explanation, and how strong it is: the same on a terminal, in HTML and on the page."""

from __future__ import annotations

from citadel.explain.objects import Explanation

_GOLDEN_ANGLE = 137.508  # neighbours in this order are far apart on the colour wheel, however many there are


def hues(explanation: Explanation) -> list[int]:
    """The hue of each match, in degrees; matches of one key share it, and keys are coloured by what they add.

    >>> from citadel.explain.objects import Match
    >>> rows = [Match((), key, None, 1.0, gain, None, ()) for key, gain in [(7, 1.0), (9, 3.0), (7, 1.0)]]
    >>> empty = Explanation(None, "d1", "", "", "static", None, 0.0, "off", 5.0, None, False, (), (), tuple(rows))
    >>> hues(empty)
    [138, 0, 138]
    """
    gains: dict[str, float] = {}
    for match in explanation.matches:
        gains[match.label] = gains.get(match.label, 0.0) + match.gain
    order = {label: place for place, label in enumerate(sorted(gains, key=lambda label: -gains[label]))}
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
