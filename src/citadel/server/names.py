"""Names of the indexes of one server, in URLs and in its configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from citadel.errors import UsageError

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_NAME = re.compile(NAME_PATTERN.strip("^$"))
_SUFFIX = ".idx"


def named_folders(arguments: Sequence[str]) -> dict[str, str]:
    """Index folders by name: `NAME=FOLDER`, or the folder's own name without `.idx`.

    >>> named_folders(["/srv/physics.idx", "old=/srv/2024/physics.idx"])
    {'physics': '/srv/physics.idx', 'old': '/srv/2024/physics.idx'}
    """
    folders: dict[str, str] = {}
    for argument in arguments:
        name, folder = _named(argument)
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{argument}: {name!r} cannot be the name of an index in a URL: write NAME={folder}, "
                "with a name of letters, digits, dots, hyphens and underscores"
            )
        if name in folders:
            raise UsageError(
                f"two indexes are called {name}, {folders[name]} and {folder}: name one as NAME={folder}"
            )
        folders[name] = folder
    _refuse_same_folder(folders)
    return folders


def check_name(name: str) -> str:
    """Return the name of an index; raise UsageError if no index can have it.

    >>> check_name("physics")
    'physics'
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of an index: write letters, digits, dots, hyphens and underscores"
        )
    return name


def _named(argument: str) -> tuple[str, str]:
    name, equals, folder = argument.partition("=")
    if equals and _NAME.fullmatch(name) and not os.path.exists(argument):
        return name, folder
    base = os.path.basename(os.path.abspath(argument))
    return (base.removesuffix(_SUFFIX) or base), argument


def _refuse_same_folder(folders: dict[str, str]) -> None:
    """Two writers of one folder would lock each other out."""
    known: dict[str, str] = {}
    for name, folder in folders.items():
        path = os.path.realpath(folder)
        if path in known:
            raise UsageError(f"{folder}: it is served as {known[path]} already: name each index once")
        known[path] = name
