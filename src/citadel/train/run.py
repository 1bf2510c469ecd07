"""Set up and finish a run: data, model with initialised heads, optimizer, processes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from citadel.encode.tokenizer import is_punctuation
from citadel.errors import InputError
from citadel.model.checkpoint import ONNX, TOKENIZER, WEIGHTS, load_model, new_model
from citadel.model.citadel import Citadel
from citadel.model.encoder import find_device
from citadel.model.hub import pinned
from citadel.model.load import Pretrained, load_pretrained, read_json
from citadel.progress import Meter
from citadel.text.function_words import function_word_ids
from citadel.train import state
from citadel.train.batches import Batches
from citadel.train.calibrate import start_heads
from citadel.train.config import TrainConfig, expand
from citadel.train.data import Data, check_lengths
from citadel.train.data_cache import load_data
from citadel.train.evaluate import evaluate
from citadel.train.inputs import Marker
from citadel.train.logs import Log
from citadel.train.offset import fit_offset
from citadel.train.processes import World
from citadel.train.teacher import BatchTeacher, find_batch_teacher
from citadel.train.tokens import check_vocabulary, load_tokenizer, special_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass
class Run:
    """State of a training run."""

    config: TrainConfig
    out: Path
    model: Citadel
    data: Data
    batches: Batches
    marker: Marker
    optimizer: torch.optim.Optimizer
    world: World
    dtype: torch.dtype
    tokenizer: Path
    total: int
    teacher: BatchTeacher | None = None
    start: int = 0
    figures: dict[str, float] = field(default_factory=dict)  # from initialising the heads
    average: dict[str, Tensor] | None = None
    averaged: int = 0

    def rate(self, step: int) -> float:
        return learning_rate(step, self.total, self.config.optimizer.warm_up_steps(self.total))

    def update(self, step: int) -> float:
        """Apply the clipped gradients and clear them; return their norm."""
        part = self.config.optimizer
        self.world.reduce(self.model)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), part.clip or float("inf"))
        for group in self.optimizer.param_groups:
            group["lr"] = group["full"] * self.rate(step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if step >= self.total * (1 - part.average):
            self._average()
        return float(norm)

    def _average(self) -> None:
        """Update the running mean of the weights."""
        now = {name: tensor.detach() for name, tensor in self.model.state_dict().items()}
        if self.average is None:
            self.average, self.averaged = {name: tensor.clone() for name, tensor in now.items()}, 1
            return
        self.averaged += 1
        for name, tensor in self.average.items():
            tensor += (now[name] - tensor) / self.averaged

    def save(self, step: int) -> None:
        """Write a checkpoint."""
        if self.world.leads:
            fingerprint = self.config.fingerprint
            state.save(
                self.out,
                step,
                self.model,
                self.optimizer,
                self.tokenizer,
                fingerprint,
                self.average,
                self.averaged,
            )
        self.world.wait()


def set_up(config: TrainConfig, out: Path, resume: bool, meter: Meter) -> Run:
    """Prepare a run; errors in config or data are raised here, before anything is written."""
    torch.manual_seed(config.seed)
    world = World(find_device(config.run.device).type)
    backbone = expand(config.model.backbone)
    pretrained = _trained(backbone) if is_model(backbone) else load_pretrained(backbone)
    if (exact := pinned(backbone, pretrained.folder)) != backbone:
        config = config.with_backbone(exact)
    tokenizer = load_tokenizer(pretrained.folder)
    check_vocabulary(tokenizer, pretrained.config.vocabulary, str(pretrained.folder))
    check_lengths(config.data, pretrained.config.longest)
    special = special_tokens(tokenizer, str(pretrained.folder))
    named = {f"{token}_id": id for token, id in special._asdict().items()} | _unrouted(config, tokenizer)
    model, _ = new_model(config.model.config(pretrained.config, name=config.name, **named), pretrained)
    state.check_out(out, resume)
    data = load_data(config, tokenizer, meter)
    model = model.to(world.device)
    model.freeze(config.optimizer.frozen)
    punctuation = [id for token, id in tokenizer.get_vocab().items() if is_punctuation(token)]
    marker = Marker(model.config, punctuation, world.device)
    batches = Batches(data, config)
    dtype = torch.bfloat16 if _bf16(config, world.device) else torch.float32
    world.check_batch(config.optimizer.batch)
    total, saved = config.optimizer.total_steps(batches.epoch_size), out / TOKENIZER
    if not (total or is_model(backbone)):
        raise InputError("optimizer.steps is 0: give steps, or a trained model as model.backbone", backbone)
    silent = [*special, *punctuation]
    teacher = find_batch_teacher(config, data, tokenizer.get_vocab(), silent, world.device, dtype)
    optimizer = _optimizer(model, config)
    run = Run(config, out, model, data, batches, marker, optimizer, world, dtype, saved, total, teacher)
    if not (resume and _resumed(run)) and not is_model(backbone):
        run.figures = start_heads(model, data, marker, config.router, config.seed, dtype, meter)
    world.agree(model)
    if world.leads:  # a single writer: checkpoints copy the tokenizer file
        os.makedirs(out, exist_ok=True)
        tokenizer.no_truncation()
        tokenizer.save(str(saved))
        (out / "train.toml").write_text(config.to_toml(), encoding="utf-8")
    world.wait()
    model.speed_up(config.run.compile, config.run.packed)
    return run


def is_model(folder: str) -> bool:
    """Whether a folder holds a model of ours, trained or exported, rather than a public backbone."""
    return os.path.isfile(os.path.join(folder, ONNX)) or (
        os.path.isfile(os.path.join(folder, WEIGHTS)) and "router" in read_json(Path(folder, "config.json"))
    )


def _unrouted(config: TrainConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    if config.model.route_function_words:
        return {}
    return {"unrouted_query_tokens": function_word_ids(tokenizer.get_vocab())}


def _trained(folder: str) -> Pretrained:
    """A trained model as the start of another run: its heads are kept."""
    model = load_model(folder)
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    return Pretrained(model.config.backbone, tensors, Path(folder))


def _resumed(run: Run) -> bool:
    """Resume from the last checkpoint; return False if there is none."""
    restored = state.restore(run.out, run.model, run.optimizer, run.config.fingerprint)
    if restored is None:
        return False
    run.start, run.averaged = restored.step, restored.averaged
    if restored.average is not None:
        run.average = {name: tensor.to(run.world.device) for name, tensor in restored.average.items()}
    return True


def finish(run: Run, log: Log, meter: Meter) -> Path:
    """Load the averaged weights, if any, evaluate, and write the model into the run's folder."""
    if run.average is not None:
        run.model.load_state_dict(run.average)
    if run.world.leads:
        if run.config.offset.on:
            log(run.total, _fit_offset(run, meter))
        if run.config.run.evaluate_at_end:
            log(run.total, held_out_figures(run, meter))
        state.publish(run.out, run.model, run.tokenizer)
    run.world.wait()
    return run.out


def held_out_figures(run: Run, meter: Meter) -> dict[str, float]:
    """Measure the model on held-out pairs, as far as [run] asks for."""
    part = run.config.run
    return evaluate(
        run.model,
        run.data,
        run.marker,
        part.evaluate_queries,
        meter=meter,
        passages=part.evaluate_passages,
    )


def _fit_offset(run: Run, meter: Meter) -> dict[str, float]:
    tokenizer, part = load_tokenizer(run.out), run.config.offset
    return fit_offset(run.model, run.data, run.marker, tokenizer, part, run.config.seed, run.dtype, meter)


def learning_rate(step: int, total: int, warm_up: int) -> float:
    """Factor of the peak learning rate at a step: linear warm-up, then linear decay to 0.

    >>> [round(learning_rate(step, 10, 2), 2) for step in (0, 1, 2, 9)]
    [0.5, 1.0, 1.0, 0.12]
    """
    if step < warm_up:
        return (step + 1) / warm_up
    return (total - step) / max(1, total - warm_up)


def _optimizer(model: Citadel, config: TrainConfig) -> torch.optim.Optimizer:
    """Make AdamW with one parameter group per learning rate; biases and norms do not decay."""
    part = config.optimizer
    groups: dict[tuple[float, bool], list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups.setdefault((part.rate(name), parameter.dim() > 1), []).append(parameter)
    param_groups = [
        {"params": chosen, "full": rate, "lr": rate, "weight_decay": part.weight_decay * decays}
        for (rate, decays), chosen in groups.items()
    ]
    return torch.optim.AdamW(param_groups, fused=next(model.parameters()).is_cuda)


def _bf16(config: TrainConfig, device: torch.device) -> bool:
    return config.run.precision == "bf16" or (config.run.precision == "auto" and device.type == "cuda")
