"""The docstrings of Python's standard library as documents, so that the demo needs no data."""

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
TIMEOUT = 120  # seconds, in case importing a module hangs

T = TypeVar("T")


def passages(limit: int = MAX_PASSAGES) -> Iterator[Document]:
    """Return up to `limit` docstrings, spread over all modules.

    >>> next(passages()).id
    'abc'
    """
    by_module: dict[str, list[Document]] = {}
    for document in without_repeats(map(to_document, collected_lines())):
        by_module.setdefault(document.metadata["module"], []).append(document)
    chosen = {document.id for document in islice(in_turns(by_module.values()), limit)}
    return (document for group in by_module.values() for document in group if document.id in chosen)


def collected_lines() -> list[str]:
    """Run collect.py with this Python, isolated from the caller's packages and settings."""
    script = Path(__file__).with_name("collect.py")
    command = [sys.executable, "-I", "-S", "-W", "ignore", str(script)]
    try:
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ResourceError(
            f"{sys.executable}: cannot collect its documentation ({error}): try again"
        ) from error
    if result.returncode:
        reason = f"exit code {result.returncode}, importing one of its modules failed"
        raise CitadelError(
            f"{sys.executable}: cannot collect its documentation ({reason}): use another Python"
        )
    return result.stdout.decode("utf-8").splitlines()


def to_document(line: str) -> Document:
    """Parse one line of collect.py.

    >>> line = '{"id": "a.b", "title": "a.b(x)", "text": "Add.", "kind": "function", "module": "a"}'
    >>> to_document(line).title
    'a.b(x)'
    """
    fields = json.loads(line)
    return Document(fields.pop("id"), fields.pop("text"), fields.pop("title"), fields)


def without_repeats(documents: Iterable[Document]) -> Iterator[Document]:
    """Skip documents whose id or text was seen before: one function can have several names.

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
    """Interleave groups: the first item of each, then the second of each, and so on.

    >>> list(in_turns(["abc", "x", "12"]))
    ['a', 'x', '1', 'b', '2', 'c']
    """
    missing = object()
    for turn in zip_longest(*groups, fillvalue=missing):
        yield from (item for item in turn if item is not missing)  # type: ignore[misc]
