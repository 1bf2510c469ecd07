"""The BM25 lists of an index as a snapshot of their own, over the same documents."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.errors import UsageError
from citadel.index.mapping import whole_files
from citadel.index.segment import Segment
from citadel.index.snapshot import Snapshot


class WordSnapshot(Snapshot):
    """The generation of another snapshot with its BM25 lists in place of the model's."""

    def __init__(self, base: Snapshot) -> None:
        if base.settings.words is None:
            raise UsageError(
                f"{base.storage.location}: this index has no BM25 lists beside its model's: build it with "
                "`citadel index --hybrid`"
            )
        self._base, self.storage, self.tombstones = base, base.storage, base.tombstones
        self.settings, self.codebook = base.settings.words.settings(), None
        self.is_ordered = base.is_ordered
        self.manifest = replace(base.manifest, settings=self.settings)
        self.segments: list[Segment] = [segment.words for segment in base.segments if segment.words]
        self._number()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the snapshot with the model's lists; the copy opens the same files."""
        return WordSnapshot, (self._base,)

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        with self._base.whole(), whole_files([segment.file for segment in self.segments]):
            yield

    def whole(self) -> contextlib.AbstractContextManager[None]:
        """A context that raises when a file was truncated or became unreadable within it."""
        return self._whole()

    @property
    def parts(self) -> Sequence[Snapshot]:
        """The shards of a sharded index; otherwise the snapshot itself."""
        return [self] if self.is_ordered else [WordSnapshot(part) for part in self._base.parts]

    def positions(self, passages: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers that order documents by their positions in the collection; each is one passage."""
        return self._base.document_positions(passages)
