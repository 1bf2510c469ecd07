"""Explanations as self-contained HTML pages without scripts, in light and dark."""

from __future__ import annotations

from html import escape

from citadel.explain.colours import hues, strength
from citadel.explain.result import Explanation, Match
from citadel.explain.text import TextExplanation, TextKey, TextToken
from citadel.text.snippet import Span

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1rem; margin-top: 2rem; } .dim, .none { opacity: .6; }
.bar { display: flex; height: 1.2rem; border-radius: .3rem; overflow: hidden; background: #8883; }
.bar i, mark, .key { background: hsl(var(--h, 210) 75% 50% / var(--a, .5)); color: inherit; }
mark, .key { border-radius: .2rem; padding: 0 .1em; }
table { border-collapse: collapse; width: 100%; } th { font-weight: 600; text-align: left; }
th, td { padding: .2rem .6rem .2rem 0; border-bottom: 1px solid #8884; vertical-align: top; }
.n { text-align: right; font-variant-numeric: tabular-nums; } .text { white-space: pre-wrap; overflow-wrap:
anywhere; } .tokens { display: flex; flex-wrap: wrap; gap: .5rem .35rem; align-items: flex-start; } .token {
display: inline-flex; flex-direction: column; align-items: center; } .token .key { font-size: .75rem;
margin-top: .1rem; padding: 0 .3em; } .pruned { opacity: .4; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def match_html(explanation: Explanation) -> str:
    """Render the explanation of a match as a page.

    >>> fields = ("<b>", "d1", "", "", "bm25", None, 0.0, "off", None, None, False, (), (), ())
    >>> "<h1>&lt;b&gt;</h1>" in match_html(Explanation(*fields))
    True
    """
    score = (
        "no score: it has no key of the query"
        if explanation.score is None
        else f"score {explanation.score:.4f}"
    )
    query = "query vectors" if explanation.query is None else explanation.query
    parts = [
        f"<h1>{_text(query)}</h1>",
        f"<p><b>{_text(explanation.id)}</b> "
        f'<span class="dim">{score}, {_text(_settings(explanation))}</span></p>',
        _bar(explanation),
        "<h2>Matches of each query token</h2>",
        _table(explanation),
        "<h2>Matches in the text</h2>",
        f'<p><b class="text">{_marked(explanation, "title")}</b></p>'
        f'<p class="text">{_marked(explanation, "text")}</p>',
    ]
    return _page(f"{explanation.id}: why it matched", parts)


def text_html(explanation: TextExplanation) -> str:
    """Render the keys of a text as a page.

    >>> "grey" in text_html(TextExplanation("", "document", "dynamic", 0.9, False, ()))
    True
    """
    largest = max((key.weight for token in explanation.tokens for key in token.keys), default=0.0)
    lead = f"Read as a {explanation.side}, router {explanation.router}, τ = {explanation.tau:g}. "
    lead += "Below each token are its keys with their weights; a token without a key above τ is grey."
    tokens = "".join(_token(explanation, token, largest) for token in explanation.tokens)
    parts = [
        "<h1>The keys of a text</h1>",
        f"<p>{_text(lead)}</p>",
        f'<div class="tokens">{tokens}</div>',
    ]
    if explanation.keys:
        keys = " ".join(_key(key, explanation.keys[0].weight) for key in explanation.keys if key.kept)
        parts += ["<h2>Keys of the whole text</h2>", f"<p>{keys}</p>"]
    return _page("The keys of a text", parts)


def _page(title: str, parts: list[str]) -> str:
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>'
    head += f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
    return f"{head}<style>{_STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"


def _text(text: str) -> str:
    """Escape text and drop control characters, which HTML forbids."""
    kept = "".join(letter for letter in text if letter >= " " or letter in "\n\t")
    return escape(kept.encode(errors="replace").decode())


def _settings(explanation: Explanation) -> str:
    codec = f" {explanation.codec}" if explanation.codec else ""
    tau = f", τ = {explanation.tau:g}" if explanation.router == "dynamic" else ""
    return f"router {explanation.router}{codec}{tau}, semantic {explanation.semantic_mode}"


def _bar(explanation: Explanation) -> str:
    """A bar of the score by match; negative shares have no width."""
    parts = [
        f'<i style="flex-grow:{match.gain:.6g};--h:{hue};--a:.7" '
        f'title="{_text(match.label)} {match.gain:.3f}"></i>'
        for match, hue in zip(explanation.matches, hues(explanation), strict=True)
        if match.gain > 0
    ]
    if explanation.semantic and explanation.semantic.gain > 0:
        gain = explanation.semantic.gain
        parts.append(f'<i style="flex-grow:{gain:.6g};--h:0;--a:0" title="semantic {gain:.3f}"></i>')
    return f'<div class="bar">{"".join(parts)}</div>'


def _table(explanation: Explanation) -> str:
    head = "<th>query token<th>key<th class=n>weight<th>matched"
    head += "<th class=n>weight<th class=n>product<th class=n>share"
    rows = [
        _row(explanation, match, hue)
        for match, hue in zip(explanation.matches, hues(explanation), strict=True)
    ]
    if explanation.semantic:
        numbers = (
            f"<td class=n>{explanation.semantic.gain:.3f}<td class=n>{percent(explanation.semantic.share)}"
        )
        rows.append(f"<tr><td colspan=5>semantic vectors{numbers}")
    return f"<table><tr>{head}{''.join(rows)}</table>"


def _row(explanation: Explanation, match: Match, hue: int) -> str:
    query_tokens = explanation.query_words(match) or "–"
    key = f'<span class="key" style="--h:{hue};--a:.35">{_text(match.label)}</span>'
    if not match.postings:
        weight = f"<td class=n>{match.weight:.2f}"
        return f'<tr class="none"><td>{_text(query_tokens)}<td>{key}{weight}<td colspan=4>no match'
    best = match.postings[0]
    matched = explanation.document_words(best) or "a posting"
    matched += f" and {len(match.postings) - 1} more" if len(match.postings) > 1 else ""
    numbers = "".join(f"<td class=n>{value}" for value in (f"{best.product:.3f}", percent(match.share)))
    weight = f"<td class=n>{best.weight:.2f}"
    row = f"<tr><td>{_text(query_tokens)}<td>{key}<td class=n>{match.weight:.2f}"
    return f"{row}<td>{_text(matched)}{weight}{numbers}"


def percent(share: float | None) -> str:
    """Format a share.

    >>> percent(0.256), percent(None)
    ('25.6 %', '–')
    """
    return "–" if share is None else f"{100 * share:.1f} %"


def _marked(explanation: Explanation, field: str) -> str:
    """A field with its spans marked in the colours of their keys."""
    text, spans, colours = (
        explanation.text if field == "text" else explanation.title,
        explanation.spans(field),
        hues(explanation),
    )
    largest = max((span.gain for part in ("title", "text") for span in explanation.spans(part)), default=0.0)
    shown, end = [], 0
    for span in spans:
        if span.start >= end:
            shown += [
                _text(text[end : span.start]),
                _mark(text, span, colours[span.matches[0]], largest, explanation),
            ]
            end = span.end
    return "".join([*shown, _text(text[end:])])


def _mark(text: str, span: Span, hue: int, largest: float, explanation: Explanation) -> str:
    keys = ", ".join(explanation.matches[match].label for match in span.matches)
    style = f"--h:{hue};--a:{0.7 * strength(span.gain, largest):.2f}"
    shown = _text(text[span.start : span.end])
    return f'<mark style="{style}" title="{_text(keys)} {span.gain:.3f}">{shown}</mark>'


def _token(explanation: TextExplanation, token: TextToken, largest: float) -> str:
    shown = explanation.text[token.start : token.end] if token.start is not None else token.token or ""
    keys = "".join(_key(key, largest) for key in token.keys if key.kept)
    kind = "token pruned" if token.pruned else "token"
    return f'<span class="{kind}" title="{_text(token.token or "")}">{_text(shown)}{keys}</span>'


def _key(key: TextKey, largest: float) -> str:
    alpha = 0.6 * strength(key.weight, largest)
    return f'<span class="key" style="--a:{alpha:.2f}">{_text(key.name)} {key.weight:.2f}</span>'
