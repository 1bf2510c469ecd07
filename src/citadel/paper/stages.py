"""Figure 8 of the paper from measurements: the time of a query by stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from citadel.paper import paper
from citadel.paper.choose import collections, encoding_note, latency_ms, systems, usual
from citadel.paper.figures import COLOURS
from citadel.paper.measured import Measured, Measurements
from citadel.paper.parts import Picture
from citadel.paper.record import Measurement

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

STAGES = ("encode", "plan", "token retrieval", "accumulate", "semantic", "sort", "ids")
STAGE_COLOURS = (*COLOURS[:6], "#999999")  # black marks the floor


def figure_8(measurements: Measurements) -> list[Picture]:
    """Draw latency by stage of COIL and CITADEL, or of all systems if neither was timed."""
    pictures = []
    for collection in collections(measurements):
        chosen = [
            each
            for name in systems(measurements)
            if (each := usual(measurements, name, collection)) is not None
        ]
        timed = [each for each in chosen if each.record.latency.get("milliseconds")]
        lexical = [
            each for each in timed if each.record.settings.get("router") in ("static", "dynamic")
        ] or timed
        size = (8.4, 1.9 + 0.45 * len(lexical))
        draw = _stacks(lexical) if lexical else None
        title = f"Figure 8. Latency by stage, {collection}"
        notes = [paper.STAGES, *missing_note(lexical), *encoding_note(lexical)]
        pictures.append(Picture(f"figure8-{collection}", title, draw, notes, size))
    return pictures


def unmeasured(record: Measurement) -> list[str]:
    """List the stages that a system has but that were not timed.

    >>> unmeasured(Measurement("DPR", "c", 1, 1, settings={"router": "none"}, latency={"milliseconds": {}}))
    ['encode', 'plan', 'sort', 'ids']
    """
    return [stage for stage in STAGES if latency_ms(record, stage) is None and _has_stage(record, stage)]


def _has_stage(record: Measurement, stage: str) -> bool:
    if stage == "semantic":
        return bool(record.config.get("semantic_dimension")) and record.settings.get("semantic") != "off"
    return stage not in ("token retrieval", "accumulate") or record.settings.get("router") != "none"


def missing_note(timed: Measurements) -> list[str]:
    """Name the stages that were not timed; empty if all were.

    >>> from pathlib import Path
    >>> times = {stage: {"mean": 1.0} for stage in STAGES if stage != "encode"}
    >>> record = Measurement("CITADEL", "c", 1, 1, latency={"milliseconds": times})
    >>> missing_note([Measured(Path("m.json"), record)])
    ['Not measured: encode of CITADEL.']
    """
    missing = [
        f"{', '.join(names)} of {each.record.system}" for each in timed if (names := unmeasured(each.record))
    ]
    return [f"Not measured: {'; '.join(missing)}."] if missing else []


def _stacks(timed: Sequence[Measured]) -> Callable[[Canvas], None]:
    names = [each.record.system for each in timed]
    spent = {stage: [latency_ms(each.record, stage) or 0.0 for each in timed] for stage in STAGES}
    shown = [stage for stage in STAGES if any(spent[stage])]

    def draw(canvas: Canvas) -> None:
        left, right = canvas.subplots(1, 2, sharey=True)
        search = [stage for stage in shown if stage != "encode"]
        for axes, stages, title in ((left, shown, "with encoding"), (right, search, "without encoding")):
            ends = _stack(axes, spent, stages, title)
            _mark_unmeasured(axes, timed, stages, ends)
        left.set_yticks(range(len(names)), names)
        left.invert_yaxis()
        _mark_floors(right, timed)
        pairs = [
            pair for axes in (left, right) for pair in zip(*axes.get_legend_handles_labels(), strict=True)
        ]
        named = {label: handle for handle, label in pairs}
        canvas.legend(named.values(), named.keys(), loc="outside lower center", ncols=4)

    return draw


def _stack(axes: Any, spent: dict[str, list[float]], stages: Sequence[str], title: str) -> list[float]:
    """Draw one stacked bar per system; return where the bars end."""
    before = np.zeros(len(next(iter(spent.values()))))
    for stage in stages:
        values = np.array(spent[stage])
        axes.barh(
            range(len(values)), values, left=before, label=stage, color=STAGE_COLOURS[STAGES.index(stage)]
        )
        before = before + values
    axes.set_title(title)
    axes.set_xlabel("milliseconds per query")
    axes.set_axisbelow(True)
    axes.grid(axis="x", alpha=0.3)
    return before.tolist()


def _mark_unmeasured(
    axes: Any, timed: Sequence[Measured], stages: Sequence[str], ends: Sequence[float]
) -> None:
    """Label bars with their unmeasured stages, which would otherwise look like zero."""
    for row, (each, end) in enumerate(zip(timed, ends, strict=True)):
        if missing := [stage for stage in unmeasured(each.record) if stage in stages]:
            text = f" {', '.join(missing)}: not measured"
            axes.text(
                end, row, text, va="center", ha="left", fontsize=10, fontstyle="italic", color="#555555"
            )


def _mark_floors(axes: Any, timed: Sequence[Measured]) -> None:
    """Mark the memory floor of each search with a line through its bar and a triangle above it."""
    labelled = False
    for row, each in enumerate(timed):
        if floor := each.record.latency.get("floors", {}).get("search"):
            axes.plot([floor, floor], [row - 0.4, row + 0.4], color="white", linewidth=3)
            axes.plot([floor, floor], [row - 0.4, row + 0.4], color="black", linewidth=1.5)
            # The triangle sets the line apart from the axis.
            axes.plot(
                [floor], [row - 0.46], "v", color="black", label=None if labelled else "floor", clip_on=False
            )
            labelled = True
