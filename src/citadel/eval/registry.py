"""Open a test collection by name: a folder, or an id of ir_datasets."""

from __future__ import annotations

import os

from citadel.errors import UsageError
from citadel.eval.datasets import SPLIT, Dataset, beir_folder
from citadel.eval.irds import PREFIX, irds_dataset
from citadel.eval.msmarco import DEFAULT_SPLIT, is_msmarco, msmarco_folder


def open_dataset(name: str | os.PathLike[str], split: str = "") -> Dataset:
    """Open a BEIR folder, a folder of MS MARCO files, or `ir_datasets:ID`."""
    given = os.fspath(name)
    if given.startswith(PREFIX):
        if split:
            raise UsageError(
                f"{given} with a split: an ir_datasets id already names its split, so leave it out"
            )
        return irds_dataset(given.removeprefix(PREFIX))
    if is_msmarco(given):
        return msmarco_folder(given, split or DEFAULT_SPLIT)
    return beir_folder(given, split or SPLIT)
