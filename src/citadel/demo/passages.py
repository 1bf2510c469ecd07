"""The documentation of the installed Python's own library as documents; no data to ship."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import TypeVar

from citadel.errors import CitadelError, ResourceError
from citadel.types import Document

MAX_PASSAGES = 4000
SECONDS = 120  # a module that never returns must not hold the demonstration for ever

T = TypeVar("T")


def passages(limit: int = MAX_PASSAGES) -> Iterator[Document]:
    """Up to `limit` modules, classes, functions and methods with their docstrings, every module represented.

    >>> next(passages()).id
    'abc'
    """
    by_module: dict[str, list[Document]] = {}
    for document in without_repeats(map(to_document, collected_lines())):
        by_module.setdefault(document.metadata["module"], []).append(document)
    chosen = {document.id for document in islice(in_turns(by_module.values()), limit)}
    return (document for group in by_module.values() for document in group if document.id in chosen)


def collected_lines() -> list[str]:
    """What collect.py prints, run by this Python without the caller's packages or settings."""
    script = Path(__file__).with_name("collect.py")
    command = [sys.executable, "-I", "-S", "-W", "ignore", str(script)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ResourceError(f"{sys.executable}: cannot read its own documentation ({error}); run it again") from error
    if done.returncode:
        reason = f"exit code {done.returncode}, a module of it cannot be imported safely; use another Python"
        raise CitadelError(f"{sys.executable}: reading its own documentation stopped: {reason}")
    return done.stdout.decode("utf-8").splitlines()


def to_document(line: str) -> Document:
    """One line of collect.py.

    >>> to_document('{"id": "a.b", "title": "a.b(x)", "text": "Add.", "kind": "function", "module": "a"}').title
    'a.b(x)'
    """
    fields = json.loads(line)
    return Document(fields.pop("id"), fields.pop("text"), fields.pop("title"), fields)


def without_repeats(documents: Iterable[Document]) -> Iterator[Document]:
    """The documents whose id and text were not seen before: many names stand for one function.

    >>> [d.id for d in without_repeats([Document("os.stat", "same"), Document("posix.stat", "same")])]
    ['os.stat']
    """
    ids: set[str] = set()
    texts: set[str] = set()
    for document in documents:
        if document.id not in ids and document.text not in texts:
            ids.add(document.id)
            texts.add(document.text)
            yield document


def in_turns(groups: Iterable[Iterable[T]]) -> Iterator[T]:
    """The first of each group, then the second of each, and so on: a cut anywhere is fair to all groups.

    >>> list(in_turns(["abc", "x", "12"]))
    ['a', 'x', '1', 'b', '2', 'c']
    """
    missing = object()
    for turn in zip_longest(*groups, fillvalue=missing):
        yield from (item for item in turn if item is not missing)  # type: ignore[misc]
