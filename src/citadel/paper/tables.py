"""Tables 1 to 6 of the paper from measurements, with the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Callable

from citadel.paper import paper
from citadel.paper.choose import (
    collections,
    encoding_note,
    keys_sweep,
    latency_ms,
    not_measured,
    systems,
    usual,
    varied,
)
from citadel.paper.markdown import MISSING, count, quality
from citadel.paper.measured import Measured, Measurements, table_order
from citadel.paper.parts import Table
from citadel.paper.record import Measurement

MARCO = {
    "msmarco-dev-small": ("RR@10", "R@1000"),
    "msmarco-dl19": ("nDCG@10", "R@1000"),
    "msmarco-dl20": ("nDCG@10", "R@1000"),
}


def value(
    each: Measured | None, read: Callable[[Measurement], float | None], show: Callable[[float | None], str]
) -> str:
    """Format a table cell, – if there is no such measurement."""
    return MISSING if each is None else show(read(each.record))


def measure_of(name: str) -> Callable[[Measurement], float | None]:
    """Return a function that reads one measure of a record.

    >>> measure_of("RR@10")(Measurement("x", "c", 1, 1, measures={"RR@10": 0.5}))
    0.5
    """
    return lambda record: record.measures.get(name)


def beside(ours: str, theirs: float | None, digits: int = 3) -> str:
    """Format our value with the paper's in brackets.

    >>> beside("0.6742", 0.674), beside("–", None)
    ('0.6742 (0.674)', '–')
    """
    return ours if theirs is None else f"{ours} ({theirs:,.{digits}f})"


def gigabytes(record: Measurement) -> float | None:
    """Size of lists and semantic vectors in GB."""
    return record.bytes / 1e9 if record.bytes else None


def table_1(measurements: Measurements) -> Table:
    """Quality on MS MARCO and TREC DL, index size and latency of all systems."""
    columns = ["system"]
    for collection, names in MARCO.items():
        columns += [f"{collection.removeprefix('msmarco-')} {name}" for name in names]
    columns += ["index, GB", "search, ms (one core)", "floor, ms"]
    ours = {each.record.system for each in measurements if each.record.collection in MARCO}
    named = sorted({*paper.TABLE_1, *ours}, key=table_order)
    note = "In brackets: the paper, whose latency is measured on a whole CPU (numpy, fp32)."
    return Table("Table 1. MS MARCO and TREC DL", columns, [_marco_row(measurements, name) for name in named],
                 [note, paper.NOT_COMPARABLE, paper.GPU_NOTE, *not_measured(measurements)])  # fmt: skip


def _marco_row(measurements: Measurements, system: str) -> list[str]:
    theirs = paper.TABLE_1.get(system)
    cells, given = [system], list(theirs[:6]) if theirs else [None] * 6
    for collection, names in MARCO.items():
        each = usual(measurements, system, collection)
        cells += [beside(value(each, measure_of(name), quality), given.pop(0)) for name in names]
    dev = usual(measurements, system, "msmarco-dev-small")
    cells.append(beside(value(dev, gigabytes, milliseconds), theirs.gigabytes if theirs else None, 1))
    cells.append(beside(value(dev, latency_ms, milliseconds), theirs.cpu_ms if theirs else None, 0))
    return [*cells, value(dev, floor_ms, milliseconds)]


def floor_ms(record: Measurement) -> float | None:
    """Milliseconds needed to read the bytes that a search touches."""
    floor = record.latency.get("floors", {}).get("search") if record.latency else None
    return float(floor) if floor else None


def table_2(measurements: Measurements) -> Table:
    """nDCG@10 on BEIR and on other measured collections."""
    others = [name for name in collections(measurements) if name not in paper.BEIR and name not in MARCO]
    named = sorted({*paper.TABLE_2, *paper.RESIDUAL, *systems(measurements)}, key=table_order)
    rows = []
    for system in named:
        theirs = paper.TABLE_2.get(system, (None,) * 14)
        ours = [_ndcg(measurements, system, collection) for collection in paper.BEIR]
        cells = [beside(quality(one), other) for one, other in zip(ours, theirs, strict=False)]
        known = [one for one in ours if one is not None]
        average = quality(sum(known) / len(known)) if len(known) == len(ours) else MISSING
        rows.append(
            [
                system,
                *cells,
                beside(average, theirs[13]),
                *(quality(_ndcg(measurements, system, each)) for each in others),
            ]
        )
    legend = ", ".join(f"{short} {name}" for name, short in paper.BEIR.items())
    columns = ["system", *paper.BEIR.values(), "average", *others]
    return Table(
        "Table 2. BEIR, nDCG@10",
        columns,
        rows,
        [f"In brackets: the paper. {legend}.", paper.NOT_COMPARABLE, *not_measured(measurements)],
    )


def _ndcg(measurements: Measurements, system: str, collection: str) -> float | None:
    each = usual(measurements, system, collection)
    return each.record.measures.get("nDCG@10") if each else None


def table_3(measurements: Measurements) -> Table:
    """Dot products per query, as counted by the engine."""
    names = collections(measurements)
    columns = [
        "system",
        *names,
        *(f"{name}, per document" for name in names),
        "paper, MS MARCO",
        "paper, per document",
    ]
    rows = []
    for system in sorted({*paper.TABLE_3, *systems(measurements)}, key=table_order):
        chosen = [usual(measurements, system, name) for name in names]
        theirs = paper.TABLE_3.get(system)
        each_document = [value(each, _products_per_document, _ratio) for each in chosen]
        cells = [value(each, lambda record: record.dot_products, count) for each in chosen]
        rows.append(
            [
                system,
                *cells,
                *each_document,
                count(theirs),
                _ratio(theirs / paper.PASSAGES if theirs else None),
            ]
        )
    return Table("Table 3. Dot products per query", columns, rows, [paper.PER_DOCUMENT])


def _products_per_document(record: Measurement) -> float | None:
    return record.dot_products / record.documents if record.dot_products is not None else None


def _ratio(number: float | None) -> str:
    if number is None:
        return MISSING
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def table_4(measurements: Measurements, system: str = "CITADEL") -> Table:
    """Size and quality by codec."""
    rows = []
    for collection in collections(measurements):
        for each in varied(measurements, system, collection, "codec"):
            one, codec = each.record, str(each.record.settings.get("codec"))
            theirs = paper.TABLE_4.get("fp32" if codec in ("fp16", "int8") else codec, (None, None, None))
            cells = [quality(one.measures.get(name)) for name in ("nDCG@10", "RR@10", "R@100")]
            size = [count(one.bytes_per_document), milliseconds(latency_ms(one))]
            named = f"{collection}, {codec}" + (f" ({one.note.split(':')[0]})" if one.note else "")
            rows.append([named, *cells, *size, *(_ratio(number) for number in theirs)])
    columns = ["collection, codec", "nDCG@10", "RR@10", "R@100", "bytes per document", "search, ms",
               "paper: MRR@10", "GB", "GPU ms"]  # fmt: skip
    return Table(f"Table 4. Product quantisation of {system}", columns, rows, [paper.CODECS])


def table_5(measurements: Measurements) -> Table:
    """Quality with and without the semantic vector."""
    names = collections(measurements)
    rows = []
    for system, theirs in paper.TABLE_5.items():
        cells = [value(usual(measurements, system, name), measure_of("nDCG@10"), quality) for name in names]
        rows.append([system, *cells, *(_ratio(number) for number in theirs)])
    for system in paper.RESIDUAL:
        cells = [value(usual(measurements, system, name), measure_of("nDCG@10"), quality) for name in names]
        rows.append([system, *cells, MISSING, MISSING, MISSING])
    for system in ("CITADEL", "COIL-full"):
        off = [_semantic_off(measurements, system, name) for name in names]
        if any(off):
            cells = [value(each, measure_of("nDCG@10"), quality) for each in off]
            rows.append([f"{system}, semantic vector off at search", *cells, MISSING, MISSING, MISSING])
    columns = [
        "system",
        *(f"{name}, nDCG@10" for name in names),
        "paper: dev MRR@10",
        "DL19 nDCG@10",
        "GPU ms",
    ]
    notes = [paper.NOT_COMPARABLE, *not_measured(measurements)]
    return Table("Table 5. Without the semantic vector", columns, rows, notes)


def _semantic_off(measurements: Measurements, system: str, collection: str) -> Measured | None:
    chosen = varied(measurements, system, collection, "semantic")
    return next((each for each in chosen if each.record.settings.get("semantic") == "off"), None)


def table_6(measurements: Measurements) -> Table:
    """Quality and cost by the number of keys per document token."""
    rows = []
    for collection in collections(measurements) or ["–"]:
        sweep = keys_sweep(measurements, collection)
        for keys, theirs in paper.TABLE_6.items() if sweep else ():
            each = sweep.get(keys)
            cells = [value(each, measure_of(name), quality) for name in ("nDCG@10", "R@100")]
            cells += [
                value(each, lambda one: one.postings_per_document, count),
                value(each, lambda one: one.bytes_per_document, count),
            ]
            cells += [value(each, lambda one: one.dot_products, count), value(each, latency_ms, milliseconds)]
            rows.append([f"{collection}, {keys}", *cells, *(_ratio(number) for number in theirs)])
    if not rows:
        rows = [
            [f"–, {keys}", *[MISSING] * 6, *(_ratio(number) for number in theirs)]
            for keys, theirs in paper.TABLE_6.items()
        ]
    columns = ["collection, keys", "nDCG@10", "R@100", "postings per document", "bytes per document",
               "dot products", "search, ms", "paper: MRR@10", "GB", "GPU ms"]  # fmt: skip
    return Table("Table 6. Keys per document token", columns, rows, [paper.KEYS])


def balance_table(measurements: Measurements) -> Table:
    """Balance of the inverted lists (Figure 3 in numbers)."""
    from citadel.paper.counts import gini, list_sizes

    rows = []
    for collection in collections(measurements):
        for system in systems(measurements):
            each = usual(measurements, system, collection)
            if (
                each is None
                or not each.record.list_sizes
                or each.record.settings.get("router") in ("all_to_all", "none")
            ):
                continue
            sizes = list_sizes(each.record.list_sizes)
            share = float(sizes[0] / sizes.sum())
            top = ", ".join(f"{key} {size:,}" for key, size in each.record.largest_lists[:3])
            figures = [count(len(sizes)), count(int(sizes[0])), f"{100 * share:.2f} %", f"{gini(sizes):.3f}"]
            rows.append([f"{collection}, {system}", *figures, top])
    columns = ["collection, system", "lists", "largest", "share of all postings", "Gini", "the three largest"]
    return Table("List balance", columns, rows, [paper.BALANCE])


def stage_table(measurements: Measurements) -> Table:
    """Milliseconds per query and stage of every timed system (Figure 8 in numbers)."""
    stages = ("encode", "plan", "token retrieval", "accumulate", "semantic", "sort", "ids", "search", "whole")
    rows = []
    for collection in collections(measurements):
        for system in systems(measurements):
            each = usual(measurements, system, collection)
            if each is None or not each.record.latency.get("milliseconds"):
                continue
            cells = [milliseconds(latency_ms(each.record, stage)) for stage in stages]
            tail = each.record.latency["milliseconds"].get("search", {})
            cells += [milliseconds(tail.get(name)) for name in ("p50", "p95", "p99")]
            rows.append([f"{collection}, {system}", *cells, milliseconds(floor_ms(each.record))])
    columns = ["collection, system", *stages, "search p50", "p95", "p99", "floor"]
    return Table(
        "Latency by stage, ms per query", columns, rows, [paper.STAGES, *encoding_note(measurements)]
    )


def milliseconds(value: float | None) -> str:
    """Format with three significant digits.

    >>> milliseconds(5.8123), milliseconds(0.00412), milliseconds(None)
    ('5.81', '0.00412', '–')
    """
    return MISSING if value is None else f"{value:.3g}"
