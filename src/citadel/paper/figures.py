"""Figures 1, 3, 4 and 6 of the paper from measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from citadel.paper import paper
from citadel.paper.choose import collections, latency_ms, not_measured, systems, usual, varied
from citadel.paper.counts import gini, list_sizes
from citadel.paper.measured import Measured, Measurements
from citadel.paper.parts import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

# Okabe and Ito's palette: safe for colour-blind readers and in greyscale.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
ROUTERS = {
    "bm25": "#000000", "none": "#0072B2", "sparse": "#009E73", "static": "#CC79A7", "all_to_all": "#56B4E9",
    "dynamic": "#D55E00", "centroid": "#E69F00",
}  # fmt: skip
MARKERS, LINES = ("o", "s", "^", "D"), ("-", "--", "-.", ":")
WIDE = (8.4, 4.4)
POINTS = 400  # per curve
MB = 1e6


class Point(NamedTuple):
    """A system in Figure 1."""

    system: str
    router: str
    cost: float
    quality: float
    megabytes: float


def figure_1(measurements: Measurements) -> list[Picture]:
    """Cost, quality and size of every system, one picture per collection; the paper's comes first."""
    pictures = [_papers_figure_1()]
    for name in collections(measurements):
        chosen = [
            each
            for system in systems(measurements)
            if (each := usual(measurements, system, name)) is not None
        ]
        timed = [each for each in chosen if latency_ms(each.record) is not None]
        if len(timed) >= 2:
            untimed = [each for each in chosen if each not in timed]
            pictures.append(_by_time(name, timed, untimed, not_measured(chosen)))
        if len(timed) < len(chosen):
            pictures.append(_by_products(name, chosen))
    return pictures


AREA = "The shaded area is proportional to the index size (lists and semantic vectors)."


def _by_time(collection: str, timed: Measurements, left_out: Measurements, missing: Sequence[str]) -> Picture:
    names = ", ".join(each.record.system for each in left_out).rstrip(".")  # one name ends with "reg."
    others = f" Not timed: {names}." if left_out else ""
    points = [point for each in timed if (point := _point(each, latency_ms(each.record))) is not None]
    draw = (
        _scatter(points, "search latency on one core (ms per query)", "nDCG@10") if len(points) >= 2 else None
    )
    title = f"Figure 1. Latency against quality, {collection}"
    return Picture(f"figure1-{collection}", title, draw, [AREA + others, *missing], WIDE)


def _by_products(collection: str, chosen: Measurements) -> Picture:
    """Dot products instead of latency, if not all systems were timed."""
    points = [point for each in chosen if (point := _point(each, each.record.dot_products)) is not None]
    draw = _scatter(points, "dot products per query", "nDCG@10") if len(points) >= 2 else None
    title = f"Figure 1. Dot products against quality, {collection}"
    return Picture(
        f"figure1-products-{collection}", title, draw, [AREA + " Not all systems were timed."], WIDE
    )


def _papers_figure_1() -> Picture:
    shown = ("DPR-128", "DPR-768", "COIL-tok", "COIL-full", "ColBERT", "CITADEL")
    rows = [(name, paper.TABLE_1[name]) for name in shown]
    kinds = {"DPR": "none", "COIL": "static", "COLBERT": "all_to_all", "CITADEL": "dynamic"}
    points = [
        Point(name, kinds[name.split("-")[0].upper()], row.gpu_ms, row.mrr, 1e3 * row.gigabytes)
        for name, row in rows
        if row.gpu_ms is not None
    ]
    draw = _scatter(points, "GPU latency reported by the paper (ms per query)", "MRR@10, MS MARCO dev")
    return Picture("figure1-paper", "Figure 1. Cost against quality, paper", draw, [paper.GPU_NOTE], WIDE)


def _point(each: Measured, cost: float | None) -> Point | None:
    one = each.record
    measure = one.measures.get("nDCG@10")
    if not cost or measure is None:
        return None
    return Point(one.system, str(one.settings.get("router")), cost, measure, one.bytes / MB)


def _short(value: float) -> str:
    """Format a number for an axis.

    >>> _short(0.5), _short(10_000), _short(3e7)
    ('0.5', '10,000', '30 M')
    """
    return f"{value / 1e6:,g} M" if value >= 1e6 else f"{value:,g}"


def _scatter(points: Sequence[Point], x: str, y: str) -> Callable[[Canvas], None]:
    """Scatter plot: colour by router, marker by system."""

    def draw(canvas: Canvas) -> None:
        from matplotlib.ticker import NullFormatter

        axes = canvas.subplots()
        largest = max(point.megabytes for point in points)
        seen: Counter[str] = Counter()
        for point in points:
            colour, shape = ROUTERS.get(point.router, "#999999"), MARKERS[seen[point.router] % len(MARKERS)]
            seen[point.router] += 1
            area = 2200 * point.megabytes / max(largest, 1e-9)
            axes.scatter([point.cost], [point.quality], area, color=colour, alpha=0.2, linewidth=0)
            label = f"{point.system}, {_megabytes(point.megabytes)}"
            axes.plot([point.cost], [point.quality], shape, color=colour, markersize=8, label=label)
        axes.set(xscale="log", xlabel=x, ylabel=y)
        axes.xaxis.set_major_formatter(lambda value, _: _short(value))
        costs = [point.cost for point in points]
        axes.xaxis.set_minor_formatter("{x:,g}" if max(costs) < 8 * min(costs) else NullFormatter())
        axes.margins(0.15, 0.15)
        axes.grid(alpha=0.3)
        canvas.legend(loc="outside right upper")

    return draw


def _megabytes(size: float) -> str:
    return f"{size / 1e3:.3g} GB" if size >= 1e3 else f"{size:.3g} MB"


def figure_3(measurements: Measurements) -> list[Picture]:
    """Share of all postings per list, largest list first."""
    pictures = []
    for collection in collections(measurements):
        curves = []
        for name in ("COIL-tok", "COIL-full", "CITADEL", "CITADEL+", "CITADEL+ w/o reg.", "SPLADE", "BM25"):
            each = usual(measurements, name, collection)
            if each is not None and len(each.record.list_sizes) > 1:
                sizes = list_sizes(each.record.list_sizes)
                curves.append((f"{each.record.system}, Gini {gini(sizes):.2f}", sizes / sizes.sum()))
        ratio = f"In the paper COIL's largest list is {paper.LARGEST_AGAINST_COIL} times CITADEL's."
        notes = [f"{ratio} {_largest(measurements, collection)}".strip()]
        draw = _curves(curves) if curves else None
        pictures.append(Picture(f"figure3-{collection}", f"Figure 3. List sizes, {collection}", draw, notes))
    return pictures


def _largest(measurements: Measurements, collection: str) -> str:
    """Ratio of COIL's largest list to CITADEL's, both as shares of all postings."""
    shares = []
    for names in (("COIL-tok", "COIL-full"), ("CITADEL",)):
        each = next(
            (one for name in names if (one := usual(measurements, name, collection)) is not None), None
        )
        if each is None or not each.record.postings:
            return ""
        shares.append(each.record.largest_list / each.record.postings)
    return f"Here the ratio is {shares[0] / shares[1]:.1f}."


def _curves(curves: Sequence[tuple[str, Any]]) -> Callable[[Canvas], None]:
    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        for index, ((name, shares), colour) in enumerate(zip(curves, COLOURS, strict=False)):
            ranks = np.unique(np.geomspace(1, len(shares), POINTS).astype(int))
            axes.plot(
                ranks,
                100 * shares[ranks - 1],
                label=name,
                color=colour,
                linewidth=2,
                linestyle=LINES[index % 4],
            )
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="rank of the list, largest first",
            ylabel="share of all postings (%)",
        )
        axes.legend(loc="lower left")
        axes.grid(alpha=0.3)

    return draw


def figure_4(measurements: Measurements, system: str = "CITADEL") -> list[Picture]:
    """Quality, size and cost by pruning threshold τ."""
    pictures = []
    for collection in collections(measurements):
        sweep = [
            each
            for each in varied(measurements, system, collection, "tau")
            if each.record.measures.get("nDCG@10") is not None
        ]
        reported = "; ".join(
            f"τ {tau:g}: MRR@10 {row[0]}, {row[1]} GB, {row[2]} ms" for tau, row in paper.FIGURE_4.items()
        )
        draw = _tau_curves(sweep) if len(sweep) >= 2 else None
        notes = [f"Paper (MS MARCO, GPU): {reported}. τ does not transfer between models."]
        pictures.append(
            Picture(
                f"figure4-{collection}",
                f"Figure 4. Pruning {system} by τ, {collection}",
                draw,
                notes,
                (6.4, 5.6),
            )
        )
    return pictures


def _tau_curves(sweep: Sequence[Measured]) -> Callable[[Canvas], None]:
    records = [each.record for each in sweep]
    taus = [float(one.settings["tau"]) for one in records]
    timed = all(latency_ms(one) is not None for one in records)
    panels = [
        ("nDCG@10", [one.measures["nDCG@10"] for one in records]),
        ("bytes per document", [one.bytes_per_document for one in records]),
        (
            "search (ms per query)" if timed else "dot products per query",
            [(latency_ms(one) if timed else one.dot_products) or 0 for one in records],
        ),
    ]

    def draw(canvas: Canvas) -> None:
        for axes, (label, values), colour in zip(
            canvas.subplots(3, 1, sharex=True), panels, COLOURS, strict=False
        ):
            axes.plot(taus, values, marker="o", color=colour, linewidth=2, clip_on=False)
            axes.set_ylabel(label)
            axes.grid(alpha=0.3)
            axes.margins(y=0.2)
        low, high = min(panels[0][1]), max(panels[0][1])
        space = max(0.15 * (high - low), 0.02 * high)
        canvas.axes[0].set_ylim(low - space, high + space)
        for axes in canvas.axes[1:]:
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter("{x:,g}")
        canvas.axes[-1].set_xlabel("τ")
        canvas.axes[-1].set_xticks(spread(taus))
        canvas.align_ylabels()

    return draw


def spread(ticks: Sequence[float], share: float = 0.08) -> list[float]:
    """Drop ticks closer to the previous one than `share` of the range, so that labels do not overlap.

    >>> spread([0.5, 0.9, 1.05, 1.1, 1.5])
    [0.5, 0.9, 1.05, 1.5]
    """
    kept = [ticks[0]]
    for tick in ticks[1:]:
        if tick - kept[-1] >= share * (ticks[-1] - ticks[0]):
            kept.append(tick)
    return kept


def figure_6(measurements: Measurements, system: str = "CITADEL") -> list[Picture]:
    """Tokens per document by number of keys and τ."""
    pictures = []
    for collection in collections(measurements):
        each = usual(measurements, system, collection)
        shown = each.record.active_keys if each is not None else {}
        draw = _bars(shown, each.record.documents) if each is not None and shown else None
        notes = ["In the paper about 50 tokens per passage have no key without pruning, and more as τ rises."]
        pictures.append(
            Picture(f"figure6-{collection}", f"Figure 6. Keys per token, {system}, {collection}", draw, notes)
        )
    return pictures


def _bars(active: Any, documents: int) -> Callable[[Canvas], None]:
    taus = sorted(active, key=float)

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        width = 0.8 / len(taus)
        shades = np.linspace(0.15, 0.9, len(taus))
        from matplotlib import colormaps

        for index, tau in enumerate(taus):
            counts = np.array(active[tau]) / max(documents, 1)
            positions = np.arange(len(counts)) + (index - (len(taus) - 1) / 2) * width
            axes.bar(positions, counts, width, label=f"τ = {tau}", color=colormaps["viridis"](shades[index]))
        axes.set(xlabel="keys per token", ylabel="tokens per document", xticks=range(len(active[taus[0]])))
        axes.legend(ncols=2)
        axes.set_axisbelow(True)
        axes.grid(axis="y", alpha=0.3)

    return draw
