"""`citadel distill`: train a student to reproduce its teacher."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from citadel.encode.tokenizer import is_punctuation
from citadel.model.checkpoint import TOKENIZER
from citadel.model.citadel import Citadel
from citadel.model.encoder import find_device
from citadel.progress import Meter, silent
from citadel.train import state
from citadel.train.config import expand
from citadel.train.data import Data, check_lengths
from citadel.train.data_cache import load_data
from citadel.train.evaluate import evaluate
from citadel.train.health import check, router_health
from citadel.train.inputs import Inputs, Marker
from citadel.train.logs import Log
from citadel.train.students.batches import StudentBatch, StudentBatches
from citadel.train.students.config import DistillConfig
from citadel.train.students.extra import extra_tokens
from citadel.train.students.match import (
    ScoredTexts,
    TextLosses,
    TextStates,
    add_scored,
    match_scores,
    match_semantic_scores,
    match_texts,
    same_key,
    text_states,
    weighted,
)
from citadel.train.students.model import TeacherModel, load_start, load_teacher, new_student, write_card
from citadel.train.students.skipped import skipped_tokens
from citadel.train.students.spans import Corpus
from citadel.train.tokens import check_vocabulary, load_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass
class StudentRun:
    """State of a run."""

    config: DistillConfig
    out: Path
    teacher: TeacherModel
    start: TeacherModel | None
    student: Citadel
    data: Data
    corpus: Corpus
    batches: StudentBatches
    marker: Marker
    optimizer: torch.optim.Optimizer
    dtype: torch.dtype
    tokenizer: Path
    bank: Tensor  # [≤ bank, s], the teacher's vectors of recent passages
    step: int = 0
    seconds: float = 0.0  # of training, before this process
    started: float = field(default_factory=time.monotonic)
    scored: tuple[ScoredTexts, ScoredTexts] | None = None  # queries and passages of the last batch of pairs

    @property
    def fingerprint(self) -> str:
        return self.config.fingerprint(self.teacher.digest, self.start.digest if self.start else "")

    def elapsed(self) -> float:
        """Seconds of training, over all processes of the run."""
        return self.seconds + time.monotonic() - self.started

    def progress(self) -> float:
        """Share of the run that is over."""
        return self.config.optimizer.progress(self.step, self.elapsed())

    def update(self) -> Tensor:
        """Apply the clipped gradients and clear them; return their norm."""
        part = self.config.optimizer
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(parameters, part.clip or float("inf"))
        for group in self.optimizer.param_groups:
            group["lr"] = part.rate(self.progress())
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def save(self) -> None:
        """Write a checkpoint, which `citadel export` can read too."""
        extra = {"bank": self.bank, "seconds": torch.tensor([self.elapsed()], dtype=torch.float64)}
        state.save(
            self.out,
            self.step,
            self.student,
            self.optimizer,
            self.tokenizer,
            self.fingerprint,
            extra=extra,
        )


class StepResult(NamedTuple):
    """Loss of a step and its terms."""

    loss: Tensor
    terms: dict[str, Tensor]


def distill(config: DistillConfig, out: str | Path, *, resume: bool = False, meter: Meter = silent) -> Path:
    """Train a student and write it to the folder `out`; `resume` continues an interrupted run."""
    run = set_up(config, Path(out), resume, meter)
    unit, total = ("steps", config.optimizer.steps) if config.optimizer.steps else ("seconds", 0)
    total = total or round(60 * config.optimizer.minutes)
    run.started = time.monotonic()
    with meter("Distilling", unit, total) as progress, Log(run.out) as log:
        result: StepResult | None = None
        while run.progress() < 1:
            result = train_step(run, run.batches.batch(run.step))
            norm = run.update()
            run.step += 1
            _watch(run, result, norm, log)
            progress(run.step if unit == "steps" else round(run.elapsed()))
        seconds = run.elapsed()
        if result is not None:
            log(run.step, {"steps_per_second": run.step / max(seconds, 1e-9), "minutes": seconds / 60})
        return _finish(run, log, meter)


def train_step(run: StudentRun, batch: StudentBatch) -> StepResult:
    """Run teacher and student on a batch and add the gradients of the loss."""
    losses, sides = TextLosses(), (ScoredTexts(), ScoredTexts())
    models, config = (run.student, run.teacher.model), run.teacher.model.config
    found: list[tuple[bool, TextStates, TextStates]] = []
    for group in batch.groups:
        ids, mask, padded = run.corpus.batch(group.spans)
        texts: Inputs = run.marker(ids, mask, query=group.is_query)
        with torch.no_grad():
            theirs = text_states(run.teacher.model, texts, run.dtype, padded, group.is_query)
        ours = text_states(run.student, texts, run.dtype, padded, group.is_query)
        match_texts(losses, ours, theirs, texts)
        found.append((group.is_query, ours, theirs))
        if batch.scored:
            side = sides[0] if group.is_query else sides[1]
            count = config.query_keys if group.is_query else config.document_keys
            add_scored(side, losses, models, (ours, theirs), texts.routed, count)
    terms = losses.means()
    if len(run.bank):
        terms |= _semantic_scores(run, found)
    if batch.scored:
        terms["scores"] = match_scores(run.student, *sides)
    loss = weighted(terms, run.config.loss)
    loss.backward()  # type: ignore[no-untyped-call]
    _remember(run, found)
    if batch.scored:
        run.scored = (sides[0].detached(), sides[1].detached())
    return StepResult(loss.detach(), {name: term.detach() for name, term in terms.items()})


def _semantic_scores(run: StudentRun, found: list[tuple[bool, TextStates, TextStates]]) -> dict[str, Tensor]:
    both = [(ours.semantic, theirs.semantic) for _, ours, theirs in found]
    ours = torch.cat([one for one, _ in both if one is not None])
    theirs = torch.cat([other for _, other in both if other is not None])
    return {"semantic_scores": match_semantic_scores(ours, theirs, run.bank)}


def _remember(run: StudentRun, found: list[tuple[bool, TextStates, TextStates]]) -> None:
    """Put the teacher's vectors of the batch's passages into the bank, in place of the oldest."""
    new = [theirs.semantic for is_query, _, theirs in found if not is_query and theirs.semantic is not None]
    if new and run.config.batch.bank:
        run.bank = torch.cat([run.bank, *new])[-run.config.batch.bank :]


def _watch(run: StudentRun, result: StepResult, norm: Tensor, log: Log) -> None:
    """Log, check and save when it is time; check before saving, so that no checkpoint holds a failed step."""
    part = run.config.run
    logs, saves = (every > 0 and run.step % every == 0 for every in (part.log_every, part.checkpoint_every))
    if not logs and not saves:
        return
    if logs:
        log(run.step, _figures(run, result, norm))
    check(float(result.loss), None, run.step, state.last_checkpoint(run.out), float(norm))
    if saves:
        run.save()


def _figures(run: StudentRun, result: StepResult, norm: Tensor) -> dict[str, float]:
    """Figures to log; the health of the router is that of the last batch of pairs."""
    figures = {"loss": float(result.loss)} | {name: float(term) for name, term in result.terms.items()}
    if run.scored is not None:
        queries, passages = run.scored
        figures |= {"same_key_queries": same_key(queries), "same_key": same_key(passages)}
        health = router_health(queries.joined()[0], passages.joined()[0])
        figures |= health.as_dict() if health else {}
    rate = run.optimizer.param_groups[0]["lr"]
    return figures | {"gradient_norm": float(norm), "learning_rate": rate, "minutes": run.elapsed() / 60}


def _finish(run: StudentRun, log: Log, meter: Meter) -> Path:
    """Check the last step, count the skipped tokens, evaluate, and write the model into the run's folder."""
    run.student.eval()
    share, seed = run.config.student.skip, run.config.seed
    skipped = skipped_tokens(run.student, run.corpus, run.marker, share, seed, run.dtype, meter)
    run.student.config = replace(run.student.config, skipped_tokens=skipped)
    if run.config.run.evaluate_at_end:
        run.save()  # evaluation may be interrupted
        part = (run.student, run.data, run.marker, run.config.run.evaluate_queries)
        figures = {f"both {name}": value for name, value in evaluate(*part, meter=meter).items()}
        queries_only = evaluate(*part, meter=meter, documents=run.teacher.model)
        figures |= {f"queries only {name}": value for name, value in queries_only.items()}
        log(run.step, figures)
    write_card(run.out, run.config, run.teacher, run.start, len(run.data.passages), run.step)
    state.publish(run.out, run.student, run.tokenizer)
    return run.out


def set_up(config: DistillConfig, out: Path, resume: bool, meter: Meter) -> StudentRun:
    """Prepare a run; errors in config or data are raised here, before anything is written."""
    torch.manual_seed(config.seed)
    device = find_device(config.run.device)
    bf16 = config.run.precision == "bf16" or (config.run.precision == "auto" and device.type == "cuda")
    dtype = torch.bfloat16 if bf16 else torch.float32
    teacher = load_teacher(expand(config.teacher), config.space)
    tokenizer = load_tokenizer(teacher.folder)
    shape = teacher.model.config.backbone
    check_vocabulary(tokenizer, shape.vocabulary, str(teacher.folder))
    check_lengths(config.data, shape.longest)
    start = load_start(expand(config.student.start))
    student = new_student(teacher, config, start).to(device)
    state.check_out(out, resume)
    data, corpus = read_corpus(config, tokenizer, shape.vocabulary, device, meter)
    batches = StudentBatches(
        corpus, data.examples, config.batch, config.seed, config.data.query_length, config.data.passage_length
    )
    punctuation = [id for token, id in tokenizer.get_vocab().items() if is_punctuation(token)]
    marker = Marker(student.config, punctuation, device)
    teacher.model.to(device).requires_grad_(False)
    teacher.model.keep_in(dtype)
    teacher.model.prepare_router(dtype)
    bank = torch.zeros(0, student.config.semantic_dimension, device=device)
    run = StudentRun(
        config, out, teacher, start, student, data, corpus, batches, marker, _optimizer(student, config),
        dtype, out / TOKENIZER, bank,
    )  # fmt: skip
    if resume:
        _resume(run)
    os.makedirs(out, exist_ok=True)
    tokenizer.no_truncation()
    tokenizer.save(str(run.tokenizer))
    (out / "distill.toml").write_text(config.to_toml(), encoding="utf-8")
    if config.run.compile:
        student.speed_up()
        teacher.model.speed_up()
    return run


def read_corpus(
    config: DistillConfig, tokenizer: Tokenizer, vocabulary: int, device: torch.device, meter: Meter
) -> tuple[Data, Corpus]:
    """Read and tokenise the texts of a config."""
    extra = extra_tokens(expand(config.extra), tokenizer, config.data.query_length)
    data = load_data(config, tokenizer, meter)
    tokens = tokenizer.get_vocab()
    words = (_begins_word(tokens, vocabulary), _ends_sentence(tokens, vocabulary))
    return data, Corpus(data, extra, *words, device)


def _resume(run: StudentRun) -> None:
    """Load the last checkpoint, if there is one."""
    restored = state.restore(run.out, run.student, run.optimizer, run.fingerprint)
    if restored is not None:
        run.step, run.seconds = restored.step, float(restored.extra["seconds"][0])
        run.bank = restored.extra["bank"].to(run.bank.device)


def _begins_word(vocabulary: dict[str, int], size: int) -> Any:
    """Mask of the tokens that begin a word, in WordPiece's spelling; punctuation does not."""
    begins = np.zeros(size, bool)
    chosen = [id for token, id in vocabulary.items() if not token.startswith("##")]
    begins[[id for id in chosen if id < size]] = True
    begins[[id for token, id in vocabulary.items() if is_punctuation(token) and id < size]] = False
    return begins


def _ends_sentence(vocabulary: dict[str, int], size: int) -> Any:
    """Mask of the tokens that end a sentence."""
    ends = np.zeros(size, bool)
    ends[[vocabulary[token] for token in ".!?" if vocabulary.get(token, size) < size]] = True
    return ends


def _optimizer(student: Citadel, config: DistillConfig) -> torch.optim.Optimizer:
    """AdamW; biases and norms do not decay."""
    part = config.optimizer
    trained = [parameter for parameter in student.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "lr": part.lr, "weight_decay": part.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "lr": part.lr, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, fused=next(student.parameters()).is_cuda)
