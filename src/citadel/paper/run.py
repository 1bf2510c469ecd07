"""Measure a model on a collection: encode once, search every variant, write runs and measurements."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from citadel.encode.batches import groups
from citadel.errors import InputError, UsageError
from citadel.eval.datasets import Dataset, drop_same_id
from citadel.eval.runs import write_run
from citadel.files import write_whole
from citadel.paper.counts import TAUS, ActiveKeys
from citadel.paper.engine import EngineSystem, IndexLists
from citadel.paper.record import (
    QUERIES,
    RUN,
    Measurement,
    beside,
    machine,
    read_measurement,
    write_measurement,
)
from citadel.paper.system import (
    MeasuredEncoder,
    SystemSpec,
    Variant,
    config_dict,
    described,
    load_system,
)
from citadel.progress import Meter, silent
from citadel.settings import RESIDUAL_BITS
from citadel.types import Document, Ranking, RoutedTokens, check_trec_ids

CHARACTERS_PER_GROUP = 1 << 18
MAX_DEPTH = 1000
MEASURES = ("nDCG@10", "RR@10", "R@100")


class System(Protocol):
    """A searchable system: native indexes, or documents in memory scored by torch."""

    engine: str

    def add(self, documents: Sequence[Document], routed: Sequence[RoutedTokens]) -> None: ...
    def finish(self) -> None: ...
    def lists(self, variant: Variant) -> IndexLists: ...
    def search(
        self, variant: Variant, queries: Sequence[tuple[str, str]], routed: Sequence[RoutedTokens], k: int
    ) -> tuple[Ranking, list[dict[str, int]]]: ...
    def latency(
        self, variant: Variant, texts: Sequence[str], routed: Sequence[RoutedTokens]
    ) -> dict[str, Any]: ...
    def close(self) -> None: ...


def measure(
    spec: SystemSpec,
    dataset: Dataset,
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    meter: Meter = silent,
) -> list[Path]:
    """Measure every variant; return the JSON files, named by variant if there are several.

    Files with the same settings are kept: rerun the same command to resume an interrupted run.
    """
    if not 1 <= spec.k <= MAX_DEPTH:
        raise UsageError(f"-k {spec.k}: choose a depth from 1 to {MAX_DEPTH}")
    encoder = load_system(spec)
    variants = spec.variants(None if encoder is None else encoder.config)
    files = {variant: _file(Path(out), variant, len(variants)) for variant in variants}
    missing = [each for each in variants if overwrite or not _is_measured(files[each], encoder, each, spec)]
    if missing:
        _measure(spec, dataset, encoder, {variant: files[variant] for variant in missing}, meter)
    return list(files.values())


def _file(out: Path, variant: Variant, count: int) -> Path:
    stem = out.name.removesuffix(".json")
    return out.with_name(f"{stem}.{variant.label}.json" if count > 1 else f"{stem}.json")


def _is_measured(file: Path, encoder: MeasuredEncoder | None, variant: Variant, spec: SystemSpec) -> bool:
    if not file.exists():
        return False
    settings = read_measurement(file).settings
    expected = _settings(spec, encoder, variant, str(settings.get("engine")))
    if {name: settings.get(name) for name in expected} != expected:
        raise InputError(
            "holds a measurement of another model or with other settings: pass --overwrite", str(file)
        )
    return True


def _measure(
    spec: SystemSpec,
    dataset: Dataset,
    encoder: MeasuredEncoder | None,
    files: Mapping[Variant, Path],
    meter: Meter,
) -> None:
    clock = StageClock()
    system = _system(spec, encoder, list(files))
    try:
        active = _index(system, encoder, dataset, [*TAUS, *(variant.tau for variant in files)], meter)
        clock("index")
        queries = dataset.judged
        routed = [] if encoder is None else encoder.encode_queries([text for _, text in queries])
        clock("encode queries")
        for variant, file in files.items():
            ranking, costs = system.search(variant, queries, routed, spec.k + dataset.drop_same_id)
            clock("search")
            lists, settings = system.lists(variant), _settings(spec, encoder, variant, system.engine)
            record = Measurement(
                system=spec.name or file.name.removesuffix(".json"),
                collection=dataset.name,
                queries=len(queries),
                stages=_means(costs),
                active_keys=active,
                settings=settings,
                config=config_dict(None if encoder is None else encoder.config),
                seconds=dict(clock.seconds),
                latency=_latency(spec, system, variant, queries, routed),
                machine=machine() | ({} if encoder is None else {"encoded_on": encoder.device}),
                note=_codec_note(lists, variant),
                **lists.figures(encoder),
            )
            _keep(file, record, dataset, _cut(ranking, dataset, spec.k), costs)
    finally:
        system.close()


def _codec_note(lists: IndexLists, variant: Variant) -> str:
    """Note that the index stores another codec than requested; empty otherwise."""
    if not lists.codec or not variant.codec.startswith(("pq", "residual")) or lists.codec == variant.codec:
        return ""
    return f"stored as {lists.codec}: too few vectors to train {variant.codec}"


def _latency(
    spec: SystemSpec,
    system: System,
    variant: Variant,
    queries: Sequence[tuple[str, str]],
    routed: Sequence[RoutedTokens],
) -> dict[str, Any]:
    if not spec.timed:
        return {}
    return system.latency(variant, [text for _, text in queries[: spec.timed]], routed[: spec.timed])


class StageClock:
    """Seconds between calls, by name."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name], self._last = round(now - self._last, 3), now


def _settings(
    spec: SystemSpec, encoder: MeasuredEncoder | None, variant: Variant, engine: str
) -> dict[str, Any]:
    config, fingerprint = (None, "") if encoder is None else (encoder.config, encoder.fingerprint)
    return {**described(config, variant, spec.k, engine), "fingerprint": fingerprint}


def _system(spec: SystemSpec, encoder: MeasuredEncoder | None, variants: list[Variant]) -> System:
    native = importlib.util.find_spec("citadel._native") is not None
    if spec.engine not in ("auto", "native", "torch"):
        raise UsageError(f"unknown engine {spec.engine!r}: choose auto, native or torch")
    if spec.engine == "native" and not native:
        raise UsageError("the native engine is not built: install the package, or choose --engine torch")
    if spec.engine == "torch" or not native:
        _refuse_residuals(variants)
        from citadel.paper.exact import ExactSystem

        return ExactSystem(encoder, spec.device)
    return EngineSystem(encoder, variants, spec.threads)


def _refuse_residuals(variants: Sequence[Variant]) -> None:
    if residual := next((each.codec for each in variants if each.codec in RESIDUAL_BITS), None):
        raise UsageError(f"--codec {residual} needs the native engine: leave --engine torch out")


def _index(
    system: System, encoder: MeasuredEncoder | None, dataset: Dataset, taus: Sequence[float], meter: Meter
) -> dict[str, list[int]]:
    """Encode and add all documents; return the histograms of keys per token by τ."""
    max_keys = (
        encoder.config.document_keys if encoder is not None and encoder.config.router == "dynamic" else 0
    )
    active, done = ActiveKeys(taus, max_keys), 0
    with meter("Indexing", "documents", _checked_count(dataset)) as progress:
        for group in groups(dataset.documents(), CHARACTERS_PER_GROUP):
            routed: list[RoutedTokens] = []
            if encoder is not None:
                texts = encoder.tokenizer.documents([document.encoded_text for document in group])
                routed = encoder.route_documents(texts)
                if max_keys:
                    active.add(routed, [int(text.routed.sum()) for text in texts])
            system.add(group, routed)
            done += len(group)
            progress(done)
        system.finish()
    return active.histograms if max_keys else {}


def _checked_count(dataset: Dataset) -> int:
    """Count the documents; raise before anything is encoded if the run could not hold an id."""
    check_trec_ids(id for id, _ in dataset.judged)
    count = 0
    for document in dataset.documents():
        check_trec_ids((document.id,))
        count += 1
    return count


def _means(costs: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Mean of each count over the queries."""
    names = costs[0] if costs else ()
    return {name: round(sum(cost[name] for cost in costs) / len(costs), 3) for name in names}


def _cut(ranking: Ranking, dataset: Dataset, k: int) -> Ranking:
    return drop_same_id(ranking, k) if dataset.drop_same_id else ranking


def _keep(
    file: Path, record: Measurement, dataset: Dataset, ranking: Ranking, costs: Sequence[Mapping[str, int]]
) -> None:
    """Write run and per-query values first, so that an existing measurement is complete."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_run(beside(file, RUN), ranking)
    products = {id: cost["dot_products"] for id, cost in zip(ranking.query_ids, costs, strict=True)}
    values = judge(ranking, dataset, record.settings["k"])
    write_whole(
        str(beside(file, QUERIES)), [json.dumps({"measures": values, "dot_products": products}) + "\n"]
    )
    write_measurement(file, _with_measures(record, values))


def judge(ranking: Ranking, dataset: Dataset, k: int) -> dict[str, dict[str, float]]:
    """Compute measure → query → value; empty if ir-measures is not installed (see `fill`)."""
    if importlib.util.find_spec("ir_measures") is None:
        return {}
    from citadel.eval.measures import evaluate_queries

    names = [*MEASURES, *(["R@1000"] if k >= MAX_DEPTH else [])]
    by_measure = evaluate_queries(ranking, dataset.qrels, names, relevant=dataset.relevant)
    return {
        name: {query: round(value, 6) for query, value in values.items()}
        for name, values in by_measure.items()
    }


def _with_measures(record: Measurement, values: Mapping[str, Mapping[str, float]]) -> Measurement:
    from dataclasses import replace

    means = {name: round(sum(by_query.values()) / len(by_query), 6) for name, by_query in values.items()}
    return replace(record, measures=means)


def fill(file: str | os.PathLike[str], dataset: Dataset) -> Measurement:
    """Add measures to a measurement made without ir-measures, computed from its run."""
    from citadel.eval.runs import read_run
    from citadel.paper.record import read_json

    record, run = read_measurement(file), beside(file, RUN)
    if record.collection != dataset.name:
        raise InputError(
            f"measured on {record.collection}, not on {dataset.name}: name that collection", str(file)
        )
    values = judge(read_run(run), dataset, int(record.settings["k"]))
    if not values:
        raise UsageError("measures need the package ir-measures: run `pip install 'citadel-ir[eval]'`")
    queries = beside(file, QUERIES)
    existing = read_json(queries) if queries.exists() else {}
    write_whole(str(queries), [json.dumps({**existing, "measures": values}) + "\n"])
    filled = _with_measures(record, values)
    write_measurement(file, filled)
    return filled
