"""Explanations on a terminal: a table of query tokens, then the text with coloured matches."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from citadel.cli.support.output import one_line, plain, shown
from citadel.explain.colours import hues, strength
from citadel.explain.html import percent
from citadel.explain.hybrid import HybridExplanation
from citadel.explain.result import Explanation, Match, Token
from citadel.explain.text import TextExplanation, TextToken

_BAR = 10  # characters of a whole score


def match_view(explanation: Explanation) -> RenderableType:
    """Render why a document matched."""
    colours = [_colour(hue) for hue in hues(explanation)]
    score = (
        "no score: no key of the query matches"
        if explanation.score is None
        else f"score {explanation.score:.4f}"
    )
    head = Text.assemble(
        (plain(explanation.id), "bold"), "  ", (plain(explanation.title), "green"), "  ", (score, "cyan")
    )
    parts: list[RenderableType] = [head, _table(explanation, colours)]
    if explanation.text:
        parts += [Text(), _snippet(explanation, colours)]
    alternatives = list(_alternatives(explanation.query_tokens))
    if alternatives:
        parts += [
            Text(),
            Text("Next keys of the query tokens, and what they would have added:"),
        ]
        parts += alternatives
    return Group(*parts)


def hybrid_view(explanation: HybridExplanation) -> RenderableType:
    """Render what each part adds to a fused score, then the explanation of each."""
    head = Text.assemble(
        (plain(explanation.id), "bold"), "  ", (f"{explanation.method} {explanation.score:.4f}", "cyan")
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("part", "weight", "rank", "score", "gain"):
        table.add_column(name, justify="left" if name == "part" else "right")
    parts: list[RenderableType] = [head, table]
    for part in explanation.parts:
        rank, score = (
            ("–", "–") if part.score is None else (str(part.rank), f"{part.score:.4f}")
        )  # not among the candidates
        table.add_row(part.name, f"{part.weight:.2f}", rank, score, f"{part.gain:.4f}")
        if part.explanation is not None:
            parts += [Text(), Text(part.name, "bold"), match_view(part.explanation)]
    return Group(*parts)


def _table(explanation: Explanation, colours: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("query token", "key", "weight", "document", "weight", "product", "share", ""):
        right = name in ("weight", "product", "share")
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=right)
    for match, colour in zip(explanation.matches, colours, strict=True):
        table.add_row(*_row(explanation, match, colour), style=None if match.postings else "dim")
    if explanation.semantic:
        gain, share = f"{explanation.semantic.gain:.3f}", percent(explanation.semantic.share)
        table.add_row("", "(semantic)", "", "", "", gain, share, _bar(explanation.semantic.share))
    return table


def _row(explanation: Explanation, match: Match, colour: str) -> list[str | Text]:
    query = one_line(explanation.query_words(match)) or "–"
    key, weight = Text(one_line(match.label), colour if match.postings else ""), f"{match.weight:.2f}"
    if not match.postings:
        return [query, key, weight, "no match", "", "", "", ""]
    best, more = match.postings[0], len(match.postings) - 1
    matched = one_line(explanation.document_words(best)) or "a posting"
    matched += f" (+{more})" if more else f" ×{best.count}" if best.count > 1 else ""
    bar = Text(_bar(match.share), colour)
    return [
        query,
        key,
        weight,
        Text(matched),
        f"{best.weight:.2f}",
        f"{best.product:.3f}",
        percent(match.share),
        bar,
    ]


def _bar(share: float | None) -> str:
    """Draw a share as a bar.

    >>> _bar(0.5), _bar(-1.0)
    ('█████', '')
    """
    return "█" * round(_BAR * min(max(share or 0.0, 0.0), 1.0))


def _snippet(explanation: Explanation, colours: list[str]) -> Text:
    cut = explanation.snippet
    body = Text(shown(cut.text))
    for span in cut.spans:
        body.stylize(f"bold {colours[span.matches[0]]}", span.start, span.end)
    is_end = cut.end == len(explanation.text) and not explanation.text_cut
    return Text.assemble("… " if explanation.text_start + cut.start else "", body, "" if is_end else " …")


def _alternatives(tokens: Iterable[Token]) -> Iterable[Text]:
    """Yield the unused keys of query tokens that this document has."""
    for token in tokens:
        keys = [
            f"{one_line(one.name or str(one.key))} {one.product:.3f}"
            for one in token.alternatives
            if one.product
        ]
        if keys:
            yield Text(f"  {one_line(token.token or str(token.position))}: {', '.join(keys)}", style="dim")


def text_view(explanation: TextExplanation) -> RenderableType:
    """Render a text, then one line per token with its keys."""
    largest = max((key.weight for token in explanation.tokens for key in token.keys), default=0.0)
    body = Text(shown(explanation.text), style="bright_black")
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("token")
    table.add_column(f"keys (τ = {explanation.tau:g})" if explanation.router == "dynamic" else "keys")
    for token in explanation.tokens:
        best = max((key.weight for key in token.keys if key.kept), default=0.0)
        if token.start is not None and best:
            body.stylize(_shade(strength(best, largest)), token.start, token.end)
        table.add_row(
            Text(one_line(token.token or ""), "bright_black" if token.pruned else ""), _keys(token, largest)
        )
    parts: list[RenderableType] = [body, Text(), table]
    if explanation.keys:
        parts += [
            Text(),
            Text(" · ".join(f"{one_line(key.name)} {key.weight:.2f}" for key in explanation.keys)),
        ]
    return Group(*parts)


def _keys(token: TextToken, largest: float) -> Text:
    """Render kept keys in the shade of their weight, pruned ones grey and in brackets."""
    parts = []
    for key in token.keys:
        name = f"{one_line(key.name)} {key.weight:.2f}"
        kept = Text(name, _shade(strength(key.weight, largest)))
        parts.append(kept if key.kept else Text(f"({name})", "bright_black"))
    return Text(" · ").join(parts)


def _colour(hue: int) -> str:
    """Return a colour that is legible on light and dark terminals.

    >>> _colour(0)
    '#d94c4c'
    """
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue / 360, 0.575, 0.65))


def _shade(strength: float) -> str:
    return f"{'bold ' if strength > 0.6 else ''}{_colour(round(210 - 180 * strength))}"
