"""Select measurements for a table: a system with its default settings, or with one setting varied."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from citadel.paper.measured import Measured, table_order
from citadel.paper.paper import RESIDUAL
from citadel.paper.record import Measurement

_KEYS = re.compile(r"keys[- ]?(\d+)")


def collections(measurements: Iterable[Measured]) -> list[str]:
    """Names of the measured collections, sorted."""
    return sorted({each.record.collection for each in measurements})


def systems(measurements: Iterable[Measured]) -> list[str]:
    """Names of the measured systems in the paper's order, without the members of the keys sweep."""
    names = {each.record.system for each in measurements if document_keys(each.record.system) is None}
    return sorted(names, key=table_order)


def usual(measurements: Iterable[Measured], system: str, collection: str) -> Measured | None:
    """Find the measurement of a system with its default settings: its own τ, int8, semantic vector."""
    matching = [each for each in measurements if same(each, system, collection)]
    return min(matching, key=lambda each: unusual(each.record), default=None)


def same(each: Measured, system: str, collection: str) -> bool:
    """Whether a measurement is of this system (ignoring case) on this collection."""
    return each.record.system.lower() == system.lower() and each.record.collection == collection


def unusual(record: Measurement) -> tuple[float, ...]:
    """Sort key: how far settings are from the model's defaults.

    >>> far = Measurement("x", "c", 1, 1, settings={"tau": 0.5, "codec": "pq2"}, config={"tau": 0.9})
    >>> near = Measurement("x", "c", 1, 1, settings={"tau": 0.9, "codec": "int8"}, config={"tau": 0.9})
    >>> unusual(near) < unusual(far)
    True
    """
    settings = record.settings
    tau = abs(float(settings.get("tau", 0)) - float(record.config.get("tau", 0)))
    return (
        settings.get("codec", "int8") not in ("int8", "tf"),
        settings.get("semantic") == "off" and bool(record.config.get("semantic_dimension")),
        tau,
        settings.get("engine") != "native",
        not record.latency,
        -int(settings.get("k", 0)),
    )


def varied(measurements: Sequence[Measured], system: str, collection: str, setting: str) -> list[Measured]:
    """Measurements of a system that differ from the default in at most this setting, sorted by it."""
    base = usual(measurements, system, collection)
    if base is None:
        return []
    names = [name for name in ("tau", "codec", "semantic") if name != setting]
    similar = [
        each
        for each in measurements
        if same(each, system, collection) and _agree(each.record, base.record, names)
    ]
    last_wins = sorted(similar, key=lambda each: _timed_like_others(each.record))
    distinct = {each.record.settings.get(setting): each for each in last_wins}
    return sorted(distinct.values(), key=lambda each: _sortable(each.record.settings.get(setting)))


def _timed_like_others(record: Measurement) -> bool:
    """Whether searches were timed as in a sweep, without encoding in between."""
    # Encoding evicts the lists from the cache, so the two are not comparable.
    stages = record.latency.get("milliseconds", {}) if record.latency else {}
    return bool(stages) and "encode" not in stages


def _sortable(value: object) -> tuple[float, str]:
    order = {"fp16": 0.0, "int8": 1.0, "pq2": 2.0, "pq1": 3.0}
    return (float(value), "") if isinstance(value, int | float) else (order.get(str(value), 9.0), str(value))


def _agree(one: Measurement, other: Measurement, names: Iterable[str]) -> bool:
    return all(one.settings.get(name) == other.settings.get(name) for name in names)


def document_keys(system: str) -> int | None:
    """Number of document keys of a member of the keys sweep (systems keys-1, keys-3, …), else None.

    >>> document_keys("keys-5"), document_keys("CITADEL")
    (5, None)
    """
    match = _KEYS.fullmatch(system.lower())
    return int(match[1]) if match else None


def keys_sweep(measurements: Iterable[Measured], collection: str) -> dict[int, Measured]:
    """Measurements of the keys sweep on a collection, by number of document keys."""
    numbered = {}
    for each in measurements:
        count = document_keys(each.record.system)
        if count is not None and each.record.collection == collection:
            numbered[count] = each
    return dict(sorted(numbered.items()))


def latency_ms(record: Measurement, stage: str = "search") -> float | None:
    """Mean milliseconds of a stage; None if it was not measured."""
    figures = record.latency.get("milliseconds", {}).get(stage) if record.latency else None
    return float(figures["mean"]) if figures else None


def not_measured(measurements: Iterable[Measured]) -> list[str]:
    """List the systems of centroids and residual codes that no measurement is of.

    >>> not_measured([])
    ['Not measured: ColBERT-v2, ColBERT-PLAID.']
    """
    known = {each.record.system for each in measurements}
    missing = ", ".join(system for system in RESIDUAL if system not in known)
    return [f"Not measured: {missing}."] if missing else []


def encoding_note(measurements: Iterable[Measured]) -> list[str]:
    """List the systems whose queries were encoded on a GPU and searched on a CPU.

    >>> from pathlib import Path
    >>> gpu = Measurement("CITADEL", "c", 1, 1, latency={"machine": {"encoded_on": "cuda"}})
    >>> encoding_note([Measured(Path("m.json"), gpu)])
    ['Encoded on a GPU, searched on one core: CITADEL.']
    """
    timed = [each.record for each in measurements if each.record.latency]
    where = {one.system: str(one.latency.get("machine", {}).get("encoded_on")) for one in timed}
    names = sorted((system for system, device in where.items() if device.startswith("cuda")), key=table_order)
    return [f"Encoded on a GPU, searched on one core: {', '.join(names)}."] if names else []
