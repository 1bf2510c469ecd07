"""Format tables and numbers as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

MISSING = "–"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table; the first column is text, the others are numbers.

    >>> print(table(["system", "nDCG@10"], [["BM25", "0.6650"]]))
    | system | nDCG@10 |
    | --- | ---: |
    | BM25 | 0.6650 |
    """
    head = [_row(columns), _row(["---", *["---:"] * (len(columns) - 1)])]
    return "\n".join([*head, *(_row(row) for row in rows)])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def quality(value: float | None) -> str:
    """Format a measure with four digits.

    >>> quality(0.66512), quality(None)
    ('0.6651', '–')
    """
    return MISSING if value is None else f"{value:.4f}"


def count(value: float | None) -> str:
    """Format a count with thousands separators; small ones with one decimal.

    >>> count(1660000), count(61.52), count(None)
    ('1,660,000', '61.5', '–')
    """
    if value is None:
        return MISSING
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:,.1f}"


def probability(p: float | None) -> str:
    """Format a p-value.

    >>> probability(0.0312), probability(0.00001), probability(None)
    ('0.031', '< 0.001', '–')
    """
    return MISSING if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
