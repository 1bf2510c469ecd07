"""Figures 5 and 7: the keys of each token of a passage, from the JSON of `citadel explain --text`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from citadel.paper.packs import unpacked
from citadel.paper.parts import Picture
from citadel.paper.record import read_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

TAUS = (0.5, 0.9, 1.1, 1.5)
MAX_TOKENS = 90  # fit on a page at a readable size
SHOWN_KEYS = 3
WIDTH, MARGIN, SPACE, LINE, KEY_LINE = 7.2, 0.08, 0.1, 0.27, 0.17  # inches
JOINED = 0.09  # inches less before a token that continues a word
GREY, BLUE = "#9a9a9a", "#0072B2"


@dataclass(frozen=True)
class ExplainedToken:
    """A token of a passage with its keys, best first."""

    text: str
    keys: tuple[tuple[str, float], ...]

    def active(self, tau: float) -> list[str]:
        """The keys above τ.

        >>> ExplainedToken("relativity", (("motion", 1.6), ("speed", 0.4))).active(0.9)
        ['motion']
        """
        return [name for name, weight in self.keys if weight > tau]


@dataclass(frozen=True)
class Passage:
    """One explained text."""

    name: str
    tau: float
    tokens: tuple[ExplainedToken, ...]


def read_passages(folder: str | os.PathLike[str]) -> list[Passage]:
    """Read every explained text below a folder or in its packs."""
    files = [(file, read_json(file)) for file in sorted(unpacked(folder).rglob("*.json"))]
    return [passage(file.stem, data) for file, data in files if _is_explained(data)]


def _is_explained(data: Any) -> bool:
    return isinstance(data, dict) and "tokens" in data and "side" in data and data.get("router") == "dynamic"


def passage(name: str, data: dict[str, Any]) -> Passage:
    """Build a passage from the JSON of an explanation.

    >>> key = {"key": 7, "name": "motion", "weight": 1.6, "kept": True}
    >>> passage("p", {"tau": 0.9, "tokens": [{"token": "relativity", "routed": True, "keys": [key]}]}).tokens
    (ExplainedToken(text='relativity', keys=(('motion', 1.6),)),)
    """
    tokens = [
        token for token in data["tokens"] if token.get("routed") and not str(token["token"]).startswith("[")
    ]
    return Passage(
        name,
        float(data.get("tau", 0.0)),
        tuple(
            ExplainedToken(
                str(token["token"]), tuple((str(key["name"]), float(key["weight"])) for key in token["keys"])
            )
            for token in tokens[:MAX_TOKENS]
        ),
    )


def attribution(passages: Sequence[Passage]) -> list[Picture]:
    """Two pictures per passage: its keys at its own τ, and the tokens left as τ rises."""
    if not passages:
        note = "Explain a passage: `citadel explain --text … --model DIR --json > FOLDER/NAME.json`."
        return [Picture("figure5", "Figures 5 and 7. Keys by token", None, [note])]
    return [picture for one in passages for picture in _pictures(one)]


def _pictures(one: Passage) -> list[Picture]:
    keys = Picture(
        f"figure5-{one.name}",
        f"Figure 5. Keys of “{one.name}” at τ = {one.tau:g}",
        lambda canvas: _typeset(canvas, [("", _words(one, one.tau, with_keys=True))]),
        ["Bold tokens have keys above τ, shown below in blue (at most three). Grey tokens have none."],
    )
    shown = [(_heading(one, tau), _words(one, tau, with_keys=False)) for tau in TAUS]
    pruned = Picture(
        f"figure7-{one.name}",
        f"Figure 7. “{one.name}” as τ rises",
        lambda canvas: _typeset(canvas, shown),
        ["Grey tokens are pruned: no key above τ."],
    )
    return [keys, pruned]


def _heading(one: Passage, tau: float) -> str:
    active = sum(bool(token.active(tau)) for token in one.tokens)
    return f"τ = {tau:g}: {active} of {len(one.tokens)} tokens have a key"


class Word(NamedTuple):
    """A token as it is typeset."""

    text: str
    bold: bool
    keys: tuple[str, ...] = ()
    continues: bool = False  # continues the previous word, as ##ity does


def _words(one: Passage, tau: float, with_keys: bool) -> list[Word]:
    return [_word(token.text, token.active(tau), with_keys) for token in one.tokens]


def _word(text: str, active: list[str], with_keys: bool) -> Word:
    shown = tuple(active[:SHOWN_KEYS]) if with_keys else ()
    joined = text.startswith("##") and not with_keys  # keys below would touch each other
    return Word(text.removeprefix("##"), bool(active), shown, joined)


def _typeset(canvas: Canvas, paragraphs: Sequence[tuple[str, Sequence[Word]]]) -> None:
    """Typeset paragraphs and size the picture to fit them."""
    lines: list[tuple[float, float, str, Any]] = []  # x and y in inches from the top left, text, style
    y = 0.0
    for heading, words in paragraphs:
        if heading:
            y += LINE
            lines.append((MARGIN, y, heading, _style("black", 11, italic=True)))
        y = _flow(canvas, words, y, lines) + LINE / 2
    canvas.set_layout_engine("none")
    canvas.set_size_inches(WIDTH, y + MARGIN)
    for x, down, text, style in lines:
        canvas.text(x / WIDTH, 1 - down / (y + MARGIN), text, va="baseline", **style)


def _flow(
    canvas: Canvas, words: Sequence[Word], y: float, lines: list[tuple[float, float, str, Any]]
) -> float:
    """Break words into lines with room for their keys; return the y of the last line."""
    x, depth = MARGIN, 0
    y += LINE
    for word in words:
        style = _style("black" if word.bold else GREY, 13, bold=word.bold)
        keys = [(key, _style(BLUE, 10)) for key in word.keys]
        width = max(_inches(canvas, text, look) for text, look in [(word.text, style), *keys])
        x -= JOINED if word.continues and x > MARGIN else 0
        if x + width > WIDTH - MARGIN and x > MARGIN:
            y += LINE + depth * KEY_LINE
            x, depth = MARGIN, 0
        lines.append((x, y, word.text, style))
        lines += [(x, y + (index + 1) * KEY_LINE, key, look) for index, (key, look) in enumerate(keys)]
        x, depth = x + width + SPACE, max(depth, len(keys))
    return y + depth * KEY_LINE


def _style(colour: str, size: int, bold: bool = False, italic: bool = False) -> dict[str, Any]:
    weight, slant = "bold" if bold else "normal", "italic" if italic else "normal"
    return {"color": colour, "fontsize": size, "fontweight": weight, "fontstyle": slant}


def _inches(canvas: Canvas, text: str, style: dict[str, Any]) -> float:
    from matplotlib.font_manager import FontProperties

    font = FontProperties(size=style["fontsize"], weight=style["fontweight"])
    width, _, _ = canvas.canvas.get_renderer().get_text_width_height_descent(text, font, False)  # type: ignore[attr-defined]
    return float(width) / canvas.dpi
