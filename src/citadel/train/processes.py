"""Multi-process training: each process encodes its share of a batch, gathers the others, and sums gradients."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from citadel.errors import InputError, UsageError
from citadel.model.citadel import Citadel, EncodedTexts
from citadel.train.inputs import Inputs

PATIENCE = timedelta(hours=6)  # one process evaluates while the others wait; NCCL's ten minutes can be too few
# What says how many processes there are: torchrun and accelerate the first, the kinds of mpirun the others.
SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
_SUMS = ("mass", "l1", "active")
_BY_TOKEN = ("routed", "vectors", "keys", "weights")


class World:
    """The processes of a run; one process needs no accelerate.

    Each computes the loss of the whole batch with its own share attached to its graph, so the sum of all gradients is
    the gradient of that loss, whatever the number of processes.

    >>> World("cpu").size
    1
    """

    def __init__(self, device: str) -> None:
        self.size = count_processes()
        self._accelerator: Any = None
        if self.size > 1:
            from accelerate import Accelerator, InitProcessGroupKwargs

            patience = InitProcessGroupKwargs(timeout=PATIENCE)
            self._accelerator = Accelerator(cpu=device == "cpu", kwargs_handlers=[patience])
        self.rank = self._accelerator.process_index if self._accelerator else 0
        self.device = self._accelerator.device if self._accelerator else torch.device(device)

    @property
    def leads(self) -> bool:
        """Whether this process writes logs and checkpoints."""
        return self.rank == 0

    def check_batch(self, queries: int) -> None:
        """Refuse a batch that the processes cannot share equally."""
        if queries % self.size:
            reason = f"optimizer.batch {queries} cannot be shared by {self.size} processes"
            raise InputError(f"{reason}: choose a multiple of {self.size}")

    def agree(self, model: Citadel) -> None:
        """Give every process the leading one's weights: two kinds of processor need not start alike."""
        if self.size > 1:
            from accelerate.utils import broadcast

            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.copy_(broadcast(parameter.detach().clone()))

    def share(self, texts: Inputs) -> Inputs:
        """This process's part of a batch; all parts are equally long."""
        part = len(texts.ids) // self.size
        return texts.rows(slice(self.rank * part, (self.rank + 1) * part))

    def gather(self, texts: EncodedTexts) -> EncodedTexts:
        """All processes' texts in the order of the batch; gradients flow into one's own."""
        if self.size == 1:
            return texts
        return texts.with_tensors({name: self._gather(name, part) for name, part in texts.tensors().items()})

    def _gather(self, name: str, part: Tensor) -> Tensor:
        if name in _BY_TOKEN:
            part = self._accelerator.pad_across_processes(part, dim=1)
        if name in _SUMS:
            others = self._accelerator.reduce(part.detach().clone(), "sum") - part.detach()
            total: Tensor = part + others
            return total
        parts = list(self._accelerator.gather(part.detach().contiguous()).chunk(self.size))
        parts[self.rank] = part
        return torch.cat(parts)

    def reduce(self, model: Citadel) -> None:
        """Sum the gradients of all processes."""
        if self.size == 1:
            return
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad = self._accelerator.reduce(parameter.grad, "sum")

    def wait(self) -> None:
        """Until every process is here."""
        if self._accelerator:
            self._accelerator.wait_for_everyone()


def count_processes() -> int:
    """How many processes were started for this run.

    `accelerate launch --cpu` starts one, whatever --num_processes says, where it is not told to use mpirun."""
    found = [int(os.environ[name]) for name in SIZES if name in os.environ]
    if not found and "ACCELERATE_USE_CPU" in os.environ and "MASTER_PORT" in os.environ:
        reason = "accelerate was asked for several processes and started one, as it does with --cpu and without mpirun"
        raise UsageError(f"{reason}: write --multi_gpu --num_machines 1 in place of --cpu, or use torchrun")
    return max(found, default=1)
