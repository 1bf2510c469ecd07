"""The training loop; setup and final export are in `run`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

from citadel.model.citadel import EncodedTexts
from citadel.progress import Meter, silent
from citadel.train import state
from citadel.train.batches import TrainingBatch
from citadel.train.config import TrainConfig
from citadel.train.health import RouterHealth, check, router_health
from citadel.train.logs import Log
from citadel.train.objective import Labels, objective
from citadel.train.run import Run, finish, held_out_figures, set_up
from citadel.train.step import Outcome, forward_backward

Terms = Callable[[EncodedTexts, EncodedTexts], dict[str, Tensor]]


def train(config: TrainConfig, out: str | Path, *, resume: bool = False, meter: Meter = silent) -> Path:
    """Train a model and write it to the folder `out`; `resume` continues an interrupted run."""
    run = set_up(config, Path(out), resume, meter)
    part, total = config.run, run.total
    with (
        meter("Training", "steps", total) as progress,
        Log(run.out, quiet=True, enabled=run.world.leads) as log,
        closing(run.batches.iterate(run.start * config.optimizer.accumulate)) as batches,
    ):
        if run.figures:
            log(0, run.figures)
        for step in range(run.start, total):
            outcome = _passes(run, batches, step / total)
            norm = run.update(step)
            done = step + 1
            logs = _due(part.log_every, done) or bool(part.log_every and done == total)
            saves = _due(part.checkpoint_every, done)
            # Check before saving, so that no checkpoint holds a failed step.
            if logs or saves or not math.isfinite(norm):
                health = router_health(outcome.queries, outcome.passages)
                if logs:
                    log(done, _figures(outcome, health, run, step, norm))
                check(float(outcome.loss), health, done, state.last_checkpoint(run.out), norm)
            if _due(part.evaluate_every, done) and done < total and run.world.leads:
                log(done, held_out_figures(run, meter))
            if saves:
                run.save(done)
            progress(done)
        return finish(run, log, meter)


def _due(every: int, done: int) -> bool:
    return every > 0 and done % every == 0


def _passes(run: Run, batches: Iterator[TrainingBatch], progress: float) -> Outcome:
    """Run all passes of a step; return the texts of the last pass and the sum of the losses."""
    outcome: Outcome | None = None
    for _ in range(run.config.optimizer.accumulate):
        outcome = _pass(run, next(batches), progress).after(outcome)
    assert outcome is not None
    return outcome


def _pass(run: Run, batch: TrainingBatch, progress: float) -> Outcome:
    """Run forward and backward on one batch; each process encodes its share and scores the batch."""
    queries = run.marker(torch.from_numpy(batch.query_ids), torch.from_numpy(batch.query_mask), query=True)
    passages = run.marker(torch.from_numpy(batch.passage_ids), torch.from_numpy(batch.passage_mask))
    world, model = run.world, run.model
    terms_of = _terms(run, batch, progress)

    def cost(q: EncodedTexts, p: EncodedTexts) -> dict[str, Tensor]:
        terms = terms_of(world.gather(q), world.gather(p))
        return {name: term / run.config.optimizer.accumulate for name, term in terms.items()}

    cache, groups = run.config.optimizer.cache, run.config.run.groups
    return forward_backward(
        model, world.share(queries), world.share(passages), cost, run.dtype, cache, groups
    )


def _terms(run: Run, batch: TrainingBatch, progress: float) -> Terms:
    labels = _labels(run, batch)
    return lambda q, p: objective(run.model, q, p, labels, run.config.loss, progress)


def _labels(run: Run, batch: TrainingBatch) -> Labels:
    """Labels of a batch: from the data, and from the batch teacher if there is one."""
    allowed = torch.from_numpy(batch.allowed).to(run.world.device)
    if run.teacher is not None:
        scores = run.teacher(batch, run.world)
        anchor = scores.dense if run.config.loss.anchor else None
        return Labels(run.config.data.group, allowed, scores.fused, anchor)
    teacher = None if batch.teacher is None else torch.from_numpy(batch.teacher).to(run.world.device)
    return Labels(run.config.data.group, allowed, teacher)


def _figures(
    outcome: Outcome, health: RouterHealth | None, run: Run, step: int, norm: float
) -> dict[str, float]:
    return {
        "loss": float(outcome.loss),
        **{name: float(term) for name, term in outcome.terms.items()},
        "gradient_norm": norm,
        "learning_rate": run.rate(step) * run.config.optimizer.lr,
        **(health.as_dict() if health else {}),
    }
