"""A storage for tests that need no durability."""

from __future__ import annotations

from citadel.index.storage import FolderStorage, Output


class Quick(FolderStorage):
    """A folder that is never synced."""

    def create(self, name: str) -> Output:
        output = super().create(name)
        output.sync = lambda: None  # type: ignore[method-assign]
        return output

    def sync(self) -> None:
        pass
