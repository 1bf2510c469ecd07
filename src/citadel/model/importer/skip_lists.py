"""Skip lists: words that are not scored, in queries, documents or both (MultiVectorMask)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from citadel.errors import InputError
from citadel.model.importer.source import Module

TASKS = ("query", "document")


def skip_lists(modules: Sequence[Module]) -> dict[str, list[str]]:
    """The words of several modules, by task."""
    lists: dict[str, list[str]] = {task: [] for task in TASKS}
    for module in modules:
        for task, words in _of_module(module).items():
            lists[task] += words
    return lists


def _of_module(module: Module) -> dict[str, list[str]]:
    words = strings(module.config.get("skiplist_words") or [], str(module.folder))
    tasks = module.config.get("skiplist_tasks") or ["document"]
    tasks = [tasks] if isinstance(tasks, str) else tasks
    if not isinstance(tasks, list) or not set(map(str, tasks)) <= set(TASKS):
        raise InputError(
            "a skip list for something other than queries and documents is not supported", str(module.folder)
        )
    if module.config.get("keep_only_token_ids"):
        raise InputError("keep_only_token_ids is not supported", str(module.folder))
    return {str(task): words for task in tasks}


def strings(words: Any, where: str) -> list[str]:
    """A list of strings from JSON."""
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InputError("the skip list is not a list of words: fetch the model again", where)
    return words
