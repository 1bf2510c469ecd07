"""Say which fields of a filter no document has: a misspelt one matches nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from citadel.cli.support.output import one_line, say

if TYPE_CHECKING:
    from citadel.filter.tree import Filter
    from citadel.index_reader import IndexReader

_SHOWN = 10  # fields in the message


def report_unknown_fields(index: IndexReader, filter: Filter | None, names: Iterable[str] = ()) -> None:
    """Print a line on stderr for fields that no document of the index has."""
    from citadel.filter.tree import comparisons

    wanted = dict.fromkeys(names)
    if filter is not None:
        wanted |= dict.fromkeys(part.field for part in comparisons(filter) if not part.tests_presence)
    if not wanted or not len(index):
        return
    known = list(index.fields())
    for name in wanted:
        if name not in known:
            listed = ", ".join(known[:_SHOWN]) + (", …" if len(known) > _SHOWN else "")
            say(one_line(f"no document has a field {json.dumps(name)}; fields: {listed or 'none'}"))
