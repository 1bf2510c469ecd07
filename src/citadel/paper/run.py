"""Measure a model on a collection: encode once, search every variant, keep run, per-query values and figures."""

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
from citadel.types import Document, Ranking, RoutedTokens, write_whole

CHARACTERS_PER_GROUP = 1 << 18
MAX_DEPTH = 1000
MEASURES = ("nDCG@10", "RR@10", "R@100")


class System(Protocol):
    """An index in some form: the engine's, or everything in memory under torch."""

    engine: str

    def add(self, documents: Sequence[Document], routed: Sequence[RoutedTokens]) -> None: ...
    def finish(self) -> None: ...
    def lists(self, variant: Variant) -> IndexLists: ...
    def search(
        self, variant: Variant, queries: Sequence[tuple[str, str]], routed: Sequence[RoutedTokens], k: int
    ) -> tuple[Ranking, list[dict[str, int]]]: ...
    def latency(self, variant: Variant, texts: Sequence[str], routed: Sequence[RoutedTokens]) -> dict[str, Any]: ...
    def close(self) -> None: ...


def measure(
    plan: SystemSpec,
    dataset: Dataset,
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    meter: Meter = silent,
) -> list[Path]:
    """Measure every variant of a plan; the JSON files. With several variants their labels stand in the names.

    What is there already with the same settings is kept, so that a run that was stopped goes on."""
    if not 1 <= plan.k <= MAX_DEPTH:
        raise UsageError(f"-k {plan.k}: a run is kept 1 to {MAX_DEPTH} deep")
    encoder = load_system(plan)
    variants = plan.variants(None if encoder is None else encoder.config)
    files = {variant: _file(Path(out), variant, len(variants)) for variant in variants}
    missing = [each for each in variants if overwrite or not _is_there(files[each], encoder, each, plan)]
    if missing:
        _measure(plan, dataset, encoder, {variant: files[variant] for variant in missing}, meter)
    return list(files.values())


def _file(out: Path, variant: Variant, count: int) -> Path:
    stem = out.name.removesuffix(".json")
    return out.with_name(f"{stem}.{variant.label}.json" if count > 1 else f"{stem}.json")


def _is_there(file: Path, encoder: MeasuredEncoder | None, variant: Variant, plan: SystemSpec) -> bool:
    if not file.exists():
        return False
    kept = read_measurement(file)
    wanted = described(None if encoder is None else encoder.config, variant, plan.k, str(kept.settings.get("engine")))
    wanted["fingerprint"] = "" if encoder is None else encoder.fingerprint
    if {name: kept.settings.get(name) for name in wanted} != wanted:
        raise InputError("another model or other settings were measured into this file: pass --overwrite", str(file))
    return True


def _measure(
    plan: SystemSpec, dataset: Dataset, encoder: MeasuredEncoder | None, files: Mapping[Variant, Path], meter: Meter
) -> None:
    clock = StageClock()
    system = _system(plan, encoder, list(files))
    try:
        active = _index(system, encoder, dataset, [*TAUS, *(variant.tau for variant in files)], meter)
        clock("index")
        queries = dataset.judged
        routed = [] if encoder is None else encoder.encode_queries([text for _, text in queries])
        clock("encode queries")
        for variant, file in files.items():
            found = system.search(variant, queries, routed, plan.k + dataset.drop_same_id)
            clock("search")
            lists, settings = system.lists(variant), _settings(plan, encoder, variant, system.engine)
            record = Measurement(
                system=plan.name or file.name.removesuffix(".json"),
                collection=dataset.name,
                queries=len(queries),
                stages=_means(found[1]),
                active_keys=active,
                settings=settings,
                config=config_dict(None if encoder is None else encoder.config),
                seconds=dict(clock.seconds),
                latency=_timed(system, variant, queries[: plan.timed], routed[: plan.timed]) if plan.timed else {},
                machine=machine() | ({} if encoder is None else {"encoded_on": encoder.device}),
                note=_stored(lists, variant),
                **lists.figures(encoder),
            )
            _keep(file, record, dataset, _cut(found[0], dataset, plan.k), found[1])
    finally:
        system.close()


def _stored(lists: IndexLists, variant: Variant) -> str:
    """Said where an index holds another codec than was asked for."""
    if not lists.codec or not variant.codec.startswith("pq") or lists.codec == variant.codec:
        return ""
    return f"stored as {lists.codec}: too few vectors to train {variant.codec} from"


def _timed(
    system: System, variant: Variant, queries: Sequence[tuple[str, str]], routed: Sequence[RoutedTokens]
) -> dict[str, Any]:
    return system.latency(variant, [text for _, text in queries], routed)


class StageClock:
    """Seconds between one call and the next, by name."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name], self._last = round(now - self._last, 3), now


def _settings(plan: SystemSpec, encoder: MeasuredEncoder | None, variant: Variant, engine: str) -> dict[str, Any]:
    config, fingerprint = (None, "") if encoder is None else (encoder.config, encoder.fingerprint)
    return {**described(config, variant, plan.k, engine), "fingerprint": fingerprint}


def _system(plan: SystemSpec, encoder: MeasuredEncoder | None, variants: list[Variant]) -> System:
    native = importlib.util.find_spec("citadel._native") is not None
    if plan.engine not in ("auto", "native", "torch"):
        raise UsageError(f"unknown engine {plan.engine!r}: choose auto, native or torch")
    if plan.engine == "native" and not native:
        raise UsageError("the native engine is not built here: install the package, or choose --engine torch")
    if plan.engine == "torch" or not native:
        from citadel.paper.exact import ExactSystem

        return ExactSystem(encoder, plan.device)
    return EngineSystem(encoder, variants, plan.threads)


def _index(
    system: System, encoder: MeasuredEncoder | None, dataset: Dataset, taus: Sequence[float], meter: Meter
) -> dict[str, list[int]]:
    """Encode and add all documents; how many keys their tokens have, by τ."""
    most = encoder.config.document_keys if encoder is not None and encoder.config.router == "dynamic" else 0
    active, done = ActiveKeys(taus, most), 0
    with meter("Indexing", "documents", sum(1 for _ in dataset.documents())) as progress:
        for group in groups(dataset.documents(), CHARACTERS_PER_GROUP):
            routed: list[RoutedTokens] = []
            if encoder is not None:
                texts = encoder.tokenizer.documents([document.encoded_text for document in group])
                routed = encoder.route_documents(texts)
                if most:
                    active.add(routed, [int(text.routed.sum()) for text in texts])
            system.add(group, routed)
            done += len(group)
            progress(done)
        system.finish()
    return active.found if most else {}


def _means(costs: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """The mean over queries of each count."""
    names = costs[0] if costs else ()
    return {name: round(sum(cost[name] for cost in costs) / len(costs), 3) for name in names}


def _cut(ranking: Ranking, dataset: Dataset, k: int) -> Ranking:
    return drop_same_id(ranking, k) if dataset.drop_same_id else ranking


def _keep(
    file: Path, record: Measurement, dataset: Dataset, ranking: Ranking, costs: Sequence[Mapping[str, int]]
) -> None:
    """Run and per-query values first: a measurement that is there is whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_run(beside(file, RUN), ranking)
    products = {id: cost["dot_products"] for id, cost in zip(ranking.query_ids, costs, strict=True)}
    values = judge(ranking, dataset, record.settings["k"])
    write_whole(str(beside(file, QUERIES)), [json.dumps({"measures": values, "dot_products": products}) + "\n"])
    write_measurement(file, _with_measures(record, values))


def judge(ranking: Ranking, dataset: Dataset, k: int) -> dict[str, dict[str, float]]:
    """Measure → query → value; nothing where ir-measures is not installed, to be filled in later."""
    if importlib.util.find_spec("ir_measures") is None:
        return {}
    from citadel.eval.measures import evaluate_queries

    names = [*MEASURES, *(["R@1000"] if k >= MAX_DEPTH else [])]
    found = evaluate_queries(ranking, dataset.qrels, names, relevant=dataset.relevant)
    return {name: {query: round(value, 6) for query, value in values.items()} for name, values in found.items()}


def _with_measures(record: Measurement, values: Mapping[str, Mapping[str, float]]) -> Measurement:
    from dataclasses import replace

    means = {name: round(sum(found.values()) / len(found), 6) for name, found in values.items()}
    return replace(record, measures=means)


def fill(file: str | os.PathLike[str], dataset: Dataset) -> Measurement:
    """Compute the measures of a measurement from its run: for one that was made where ir-measures is not installed."""
    from citadel.eval.runs import read_run
    from citadel.paper.record import read_json

    record, run = read_measurement(file), beside(file, RUN)
    if record.collection != dataset.name:
        raise InputError(f"measured on {record.collection}, not on {dataset.name}: name that collection", str(file))
    values = judge(read_run(run), dataset, int(record.settings["k"]))
    if not values:
        raise UsageError("measures need the package ir-measures: run `pip install 'citadel-ir[eval]'`")
    queries = beside(file, QUERIES)
    kept = read_json(queries) if queries.exists() else {}
    write_whole(str(queries), [json.dumps({**kept, "measures": values}) + "\n"])
    filled = _with_measures(record, values)
    write_measurement(file, filled)
    return filled
