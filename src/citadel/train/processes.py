"""Multi-process training: encode a share of the batch, gather the rest, sum the gradients."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from citadel.errors import InputError, UsageError
from citadel.model.citadel import Citadel, EncodedTexts
from citadel.train.inputs import Inputs

# The others wait while one process evaluates; NCCL's default of ten minutes can be too short.
PATIENCE = timedelta(hours=6)
# Environment variables with the number of processes, set by torchrun and accelerate or by mpirun.
SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
_SUMS = ("mass", "l1", "active")
_BY_TOKEN = ("routed", "vectors", "keys", "weights")


class World:
    """The processes of a run; a single process does not need accelerate.

    Each computes the loss of the whole batch with only its own share in its graph. The sum of their gradients
    is the gradient of that loss, for any number of processes.

    >>> World("cpu").size
    1
    """

    def __init__(self, device: str) -> None:
        self.size = count_processes()
        self._accelerator: Any = None
        if self.size > 1:
            from accelerate import Accelerator, InitProcessGroupKwargs

            timeout = InitProcessGroupKwargs(timeout=PATIENCE)
            self._accelerator = Accelerator(cpu=device == "cpu", kwargs_handlers=[timeout])
        self.rank = self._accelerator.process_index if self._accelerator else 0
        self.device = self._accelerator.device if self._accelerator else torch.device(device)

    @property
    def leads(self) -> bool:
        """Whether this process writes logs and checkpoints."""
        return self.rank == 0

    def check_batch(self, queries: int) -> None:
        """Raise if the processes cannot share a batch equally."""
        if queries % self.size:
            reason = f"optimizer.batch {queries} cannot be shared by {self.size} processes"
            raise InputError(f"{reason}: choose a multiple of {self.size}")

    def agree(self, model: Citadel) -> None:
        """Copy the leader's weights to every process: initialisation can differ between processors."""
        if self.size > 1:
            from accelerate.utils import broadcast

            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.copy_(broadcast(parameter.detach().clone()))

    def share(self, texts: Inputs) -> Inputs:
        """Select this process's part of a batch; all parts have equal length."""
        part = len(texts.ids) // self.size
        return texts.rows(slice(self.rank * part, (self.rank + 1) * part))

    def gather(self, texts: EncodedTexts) -> EncodedTexts:
        """Gather the texts of all processes in batch order; gradients flow into the local ones only."""
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
        """Wait until every process gets here."""
        if self._accelerator:
            self._accelerator.wait_for_everyone()


def count_processes() -> int:
    """Number of processes of this run.

    `accelerate launch --cpu` ignores --num_processes and starts one process unless it uses mpirun.
    """
    sizes = [int(os.environ[name]) for name in SIZES if name in os.environ]
    if not sizes and "ACCELERATE_USE_CPU" in os.environ and "MASTER_PORT" in os.environ:
        reason = "accelerate --cpu without mpirun starts one process, whatever --num_processes says"
        raise UsageError(f"{reason}: use --multi_gpu --num_machines 1 instead of --cpu, or use torchrun")
    return max(sizes, default=1)
