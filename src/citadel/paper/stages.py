"""Figure 8 of the paper from measurements: where the time of a query goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from citadel.paper import paper
from citadel.paper.choose import collections, encoding_note, latency_ms, systems, usual
from citadel.paper.figures import COLOURS, Measurements
from citadel.paper.measured import Measured
from citadel.paper.parts import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

STAGES = ("encode", "plan", "token retrieval", "accumulate", "semantic", "sort", "ids")
STAGE_COLOURS = (*COLOURS[:6], "#999999")  # black is the floor's


def figure_8(found: Measurements) -> list[Picture]:
    """Where the time of a query goes: COIL against CITADEL, as in the paper, or all where neither was timed."""
    pictures = []
    for collection in collections(found):
        chosen = [each for name in systems(found) if (each := usual(found, name, collection)) is not None]
        timed = [each for each in chosen if each.record.latency.get("milliseconds")]
        lexical = [each for each in timed if each.record.settings.get("router") in ("static", "dynamic")] or timed
        size = (8.4, 1.9 + 0.45 * len(lexical))
        draw = _stacks(lexical) if lexical else None
        title = f"Figure 8. Where the time goes, {collection}"
        pictures.append(Picture(f"figure8-{collection}", title, draw, [paper.STAGES, *encoding_note(lexical)], size))
    return pictures


def _stacks(timed: Sequence[Measured]) -> Callable[[Canvas], None]:
    names = [each.record.system for each in timed]
    spent = {stage: [latency_ms(each.record, stage) or 0.0 for each in timed] for stage in STAGES}
    shown = [stage for stage in STAGES if any(spent[stage])]

    def draw(canvas: Canvas) -> None:
        left, right = canvas.subplots(1, 2, sharey=True)
        _stack(left, spent, shown, "with encoding")
        _stack(right, spent, [stage for stage in shown if stage != "encode"], "without encoding")
        left.set_yticks(range(len(names)), names)
        left.invert_yaxis()
        for place, each in enumerate(timed):
            floor = each.record.latency.get("floors", {}).get("search")
            if floor:
                label = "floor" if place == 0 else None
                right.plot([floor, floor], [place - 0.4, place + 0.4], color="white", linewidth=3)
                right.plot([floor, floor], [place - 0.4, place + 0.4], color="black", linewidth=1.5)
                # a mark above the bar too: a line at the axis would be taken for it
                right.plot([floor], [place - 0.46], "v", color="black", label=label, clip_on=False)
        panels = (left, right)
        pairs = [pair for axes in panels for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
        named = {label: handle for handle, label in pairs}
        canvas.legend(named.values(), named.keys(), loc="outside lower center", ncols=4)

    return draw


def _stack(axes: Any, spent: dict[str, list[float]], stages: Sequence[str], title: str) -> None:
    before = np.zeros(len(next(iter(spent.values()))))
    for stage in stages:
        values = np.array(spent[stage])
        axes.barh(range(len(values)), values, left=before, label=stage, color=STAGE_COLOURS[STAGES.index(stage)])
        before = before + values
    axes.set_title(title)
    axes.set_xlabel("milliseconds a query")
    axes.set_axisbelow(True)
    axes.grid(axis="x", alpha=0.3)
