"""Compare all systems per collection, with paired t-tests against CITADEL.

Systems that learned from a teacher have tables of their own, once there is one to compare CITADEL+ with.
"""

from __future__ import annotations

from collections.abc import Sequence

from citadel.paper.choose import systems, usual
from citadel.paper.markdown import MISSING, count, probability, quality
from citadel.paper.measured import Measured
from citadel.paper.parts import Table
from citadel.paper.record import Measurement

BASELINE, TAUGHT_BASELINE = "CITADEL", "CITADEL+"
TAUGHT = ("SPLADE-v2", "ColBERT-v2", "ColBERT-PLAID", TAUGHT_BASELINE, "CITADEL+ w/o reg.")  # by a teacher
MEASURE = "nDCG@10"
COLUMNS = (
    "system", "nDCG@10", "p", "R@100", "p", "dot products per query", "postings per document", "largest list",
    "bytes per document",
)  # fmt: skip


def family_table(measurements: Sequence[Measured], baseline: str = BASELINE) -> str:
    """Render one Markdown table per collection, with a note on CITADEL against ColBERT."""
    return "\n\n".join(one.markdown() for one in family_tables(measurements, baseline))


def family_tables(measurements: Sequence[Measured], baseline: str = BASELINE) -> list[Table]:
    """Make one table per collection, or two, with each system at its default settings."""
    names = dict.fromkeys(each.record.collection for each in measurements)
    taught = [each for each in measurements if each.record.system in TAUGHT]
    if baseline != BASELINE or not any("v2" in each.record.system for each in taught):
        return [_collection(name, measurements, baseline) for name in names]
    others = [each for each in measurements if each not in taught]
    return [
        _collection(name, some, base, kind)
        for name in names
        for some, base, kind in (
            (others, BASELINE, ", without a teacher"),
            (taught, TAUGHT_BASELINE, ", with a teacher"),
        )
        if any(each.record.collection == name for each in some)
    ]


def _collection(name: str, measurements: Sequence[Measured], baseline: str, kind: str = "") -> Table:
    shown = [
        each for system in systems(measurements) if (each := usual(measurements, system, name)) is not None
    ]
    shown = shown or [each for each in measurements if each.record.collection == name]  # only a keys sweep
    base, first = usual(measurements, baseline, name), shown[0].record
    note = f"p: two-sided paired t-test over the queries against {baseline}; {_conditions(shown)}."
    title = f"{name}{kind} ({first.documents:,} documents, {first.queries:,} queries)"
    pairs = (("CITADEL", "ColBERT"), (TAUGHT_BASELINE, "ColBERT"), (TAUGHT_BASELINE, "ColBERT-v2"))
    claims = [claim(*(usual(measurements, system, name) for system in pair)) for pair in pairs]
    return Table(
        title, COLUMNS, [_row(each, base) for each in shown], [part for part in (note, *claims) if part]
    )


def _row(each: Measured, base: Measured | None) -> list[str]:
    one = each.record
    return [
        _name(each),
        *_with_p(each, base, MEASURE),
        *_with_p(each, base, "R@100"),
        count(one.dot_products),
        count(one.postings_per_document) if one.postings else MISSING,
        count(one.largest_list) if one.list_sizes else MISSING,
        count(one.bytes_per_document) if one.bytes else MISSING,
    ]


def _name(each: Measured) -> str:
    """System name with the settings in which it differs from the others."""
    settings = each.record.settings
    parts = [f"τ {settings['tau']:g}"] if settings.get("router") == "dynamic" else []
    if settings.get("codec", "int8") not in ("int8", "tf"):
        parts.append(str(settings["codec"]))
    if settings.get("semantic") == "off" and each.record.config.get("semantic_dimension"):
        parts.append("no semantic vector")
    return each.record.system + (f" ({', '.join(parts)})" if parts else "")


def _with_p(each: Measured, base: Measured | None, measure: str) -> tuple[str, str]:
    value = quality(each.record.measures.get(measure))
    comparison = each.against(base, measure) if base is not None and base is not each else None
    return value, probability(comparison.p) if comparison else MISSING


def _conditions(measurements: Sequence[Measured]) -> str:
    engines = sorted({str(each.record.settings.get("engine")) for each in measurements})
    dates = sorted({str(each.record.machine.get("date")) for each in measurements})
    return f"engine {', '.join(engines)}; measured {' to '.join(dict.fromkeys((dates[0], dates[-1])))}"


def claim(citadel: Measured | None, colbert: Measured | None) -> str:
    """State whether the paper's claim holds; empty if CITADEL or ColBERT was not measured."""
    if citadel is None or colbert is None:
        return ""
    ours, theirs = citadel.record, colbert.record
    better = citadel.against(colbert, MEASURE)
    products = _ratio(ours, theirs)
    if better is None or products is None:
        return ""
    verdict = "at least as good as" if better.difference >= 0 else "worse than"
    interval = f"95 % interval {better.low:+.4f} to {better.high:+.4f}"
    evidence = f"difference {better.difference:+.4f}, p {probability(better.p)}, {interval}"
    fewer = f"1/{1 / products:,.0f} of its dot products"
    holds = "holds" if better.difference >= 0 and products <= 0.01 else "does not hold"
    return (
        f"{ours.system} is {verdict} {theirs.system} ({evidence}) with {fewer}: "
        f"the claim (quality no lower, at most 1/100 of the products) {holds} here."
    )


def _ratio(ours: Measurement, theirs: Measurement) -> float | None:
    if not ours.dot_products or not theirs.dot_products:
        return None
    return ours.dot_products / theirs.dot_products
