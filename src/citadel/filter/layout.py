"""The columns of a segment, and how they lie in a file: a JSON list of fields beside one block of arrays."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from citadel.filter.column import Column, ListColumn, NumberColumn, Postings, StringColumn
from citadel.filter.dictionary import Dictionary
from citadel.filter.kinds import BOOL, FLOAT, INT, MIXED, OTHER, SINGLE, STRING, STRINGS
from citadel.filter.presence import Presence

MAX_COLUMNS = 1000  # per segment
ALIGNMENT = 8
_TYPES = {
    "positions": ("<u4",),
    "presence": ("|u1",),
    "values": ("<i8", "<f8", "|u1"),
    "codes": ("|u1", "<u2"),
    "hashes": ("<u8",),
    "instants": ("<i8",),
    "offsets": ("<i8",),
    "posting_starts": ("<i8",),
    "posting_lists": ("<u4",),
    "entry_offsets": ("<u4",),
    "entries": ("|u1",),
}
_VALUES = {INT: "<i8", FLOAT: "<f8", BOOL: "|u1"}

Read = Callable[[int, int], NDArray[np.uint8]]  # bytes start … stop − 1 of the block, checked
Corrupt = Callable[[str], Exception]


class ColumnsError(ValueError):
    """Columns that cannot be what was written."""


class Columns:
    """The columns of one segment by name; those of a file are read and checked at first use.

    `has_all` says that a field without a column is missing in every row. Without it the segment has more
    fields than columns, and others must be built from the stored documents.
    """

    def __init__(
        self, rows: int, columns: Mapping[str, Column | Callable[[], Column]], has_all: bool = True
    ) -> None:
        self.rows, self.has_all = rows, has_all
        self._columns = dict(columns)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._columns)

    def column(self, name: str) -> Column | None:
        """The column of a field; None where it has none."""
        column = self._columns.get(name)
        if column is not None and not isinstance(column, Column):
            column = self._columns[name] = column()
        return column

    def kinds(self, name: str) -> tuple[frozenset[str], bool]:
        """The kinds of a field's values and whether all are ISO dates, without reading a column of a file."""
        column = self._columns[name]
        if isinstance(column, _Loader):
            return column.kinds, column.is_date
        column = column if isinstance(column, Column) else column()
        return frozenset(column.kinds or (column.kind,)), column.is_date

    def check(self) -> None:
        """Read and check every column."""
        for name in self._columns:
            self.column(name)

    def parts(self) -> tuple[bytes, Iterator[NDArray[Any] | bytes]]:
        """The fields as JSON, and the pieces of the block, in order."""
        fields: list[dict[str, Any]] = []
        pieces: list[NDArray[Any] | bytes] = []
        size = 0
        for name in self._columns:
            column = self.column(name)
            assert column is not None
            arrays: dict[str, list[Any]] = {}
            for role, values in column.arrays().items():
                if values is not None:
                    values = values.astype(values.dtype.newbyteorder("<"), copy=False)
                    arrays[role] = [values.dtype.str, size, len(values)]
                    pieces += [values, bytes(-values.nbytes % ALIGNMENT)]
                    size += values.nbytes + -values.nbytes % ALIGNMENT
            kinds = {"kinds": list(column.kinds)} if column.kind == MIXED else {}
            fields.append({"name": name, "kind": column.kind, **kinds, "arrays": arrays})
        head = {"rows": self.rows, "has_all": self.has_all, "fields": fields}
        return json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode(), iter(pieces)

    @classmethod
    def from_parts(
        cls,
        head: Mapping[str, Any],
        read: Read,
        size: int,
        rows: int,
        corrupt: Corrupt = ColumnsError,
        require_whole: Callable[[], None] = lambda: None,
    ) -> Columns:
        """Columns over a block of `size` bytes; `head` is the JSON of `parts`, checked here.

        `corrupt` makes the error of what is wrong, here or at the first use of a column.
        """
        fields = head.get("fields")
        if head.get("rows") != rows or not isinstance(fields, list) or len(fields) > MAX_COLUMNS:
            raise corrupt("its fields do not fit the segment")
        columns: dict[str, Column | Callable[[], Column]] = {}
        for entry in fields:
            loader = _Loader(entry, read, size, rows, corrupt, require_whole)
            if loader.name in columns:
                raise corrupt("it has a field twice")
            columns[loader.name] = loader
        return cls(rows, columns, head.get("has_all") is True)


class _Loader:
    """Reads one column: where its arrays lie is checked at once, what is in them when it is called."""

    def __init__(
        self,
        entry: Any,
        read: Read,
        size: int,
        rows: int,
        corrupt: Corrupt,
        require_whole: Callable[[], None],
    ) -> None:
        self._read, self._size, self._rows = read, size, rows
        self._make_error, self._require_whole = corrupt, require_whole
        self.name = "?"
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            self._fail("it has no name")
        self.name = entry["name"]
        self._kind: str = entry.get("kind", "")
        self._kinds: list[str] = entry.get("kinds", [])
        arrays = entry.get("arrays")
        if self._kind not in (*SINGLE, MIXED) or not isinstance(arrays, dict):
            self._fail("its kind is unknown")
        is_list = isinstance(self._kinds, list) and all(kind in SINGLE for kind in self._kinds)
        if not is_list or (len(set(self._kinds)) > 1) != (self._kind == MIXED):
            self._fail("its kinds are unknown")
        self._extents = {role: self._extent(role, extent) for role, extent in arrays.items()}

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(self._kinds or (self._kind,))

    @property
    def is_date(self) -> bool:
        return "instants" in self._extents

    def _fail(self, problem: str) -> NoReturn:
        self._require_whole()
        raise self._make_error(f"field {json.dumps(self.name[:60])}: {problem}")

    def _extent(self, role: str, extent: Any) -> tuple[str, int, int]:
        """Type, first byte and last byte + 1 of an array."""
        if not isinstance(extent, list) or len(extent) != 3 or role not in _TYPES:
            self._fail("an array is described wrongly")
        dtype, start, count = extent
        if dtype not in _TYPES[role] or type(start) is not int or type(count) is not int:
            self._fail("an array is described wrongly")
        stop = start + count * np.dtype(dtype).itemsize
        if start % ALIGNMENT or not 0 <= start <= stop <= self._size:
            self._fail("an array lies outside the file")
        return dtype, start, stop

    def __call__(self) -> Column:
        presence = self._presence()
        if self._kind in (OTHER, MIXED):
            kinds = tuple(self._kinds) or (OTHER,)
            return Column(self.name, self._kind, presence, kinds, require_whole=self._require_whole)
        if self._kind in _VALUES:
            return self._numbers(presence)
        return self._strings(presence) if self._kind == STRING else self._lists(presence)

    def _array(self, role: str, count: int, dtype: str = "") -> NDArray[Any]:
        """An array that must be there, with so many elements; −1: any number."""
        if role not in self._extents:
            self._fail(f"its {role} are missing")
        found, start, stop = self._extents[role]
        values = self._read(start, stop).view(found)
        if (count >= 0 and len(values) != count) or (dtype and found != dtype):
            self._fail(f"its {role} do not fit")
        return values

    def _presence(self) -> Presence:
        if "positions" in self._extents:
            positions = self._array("positions", -1)
            if not len(positions) or positions[-1] >= self._rows or (positions[1:] <= positions[:-1]).any():
                self._fail("its rows do not rise")
            return Presence(self._rows, positions=positions)
        if "presence" not in self._extents:
            return Presence(self._rows)
        bits = self._array("presence", -(-self._rows // 8))
        if self._rows % 8 and bits[-1] >> (self._rows % 8):
            self._fail("its presence goes beyond the rows")
        return Presence(self._rows, bits=bits)

    def _numbers(self, presence: Presence) -> NumberColumn:
        values = self._array("values", presence.size, _VALUES[self._kind])
        if self._kind == BOOL and (values > 1).any():
            self._fail("a boolean is neither 0 nor 1")
        if self._kind == FLOAT and len(values) and not np.isfinite([values.min(), values.max()]).all():
            self._fail("a number is not finite")
        return NumberColumn(self.name, self._kind, presence, values=values, require_whole=self._require_whole)

    def _dictionary(self) -> Dictionary | None:
        if "hashes" in self._extents:
            return None
        offsets = self._array("entry_offsets", -1)
        dictionary = Dictionary(offsets, self._array("entries", -1))
        if problem := dictionary.problem():
            self._fail(problem)
        return dictionary

    def _tokens(self, dictionary: Dictionary | None, count: int) -> NDArray[Any]:
        if dictionary is None:
            return self._array("hashes", count)
        codes = self._array("codes", count)
        if len(codes) and codes.max() >= len(dictionary):
            self._fail("a code is not in the dictionary")
        return codes

    def _strings(self, presence: Presence) -> StringColumn:
        dictionary = self._dictionary()
        tokens = self._tokens(dictionary, presence.size)
        instants = None
        if "instants" in self._extents:
            instants = self._array("instants", presence.size if dictionary is None else len(dictionary))
        return StringColumn(
            self.name,
            STRING,
            presence,
            tokens=tokens,
            dictionary=dictionary,
            instants=instants,
            require_whole=self._require_whole,
        )

    def _postings(self, entries: int, size: int) -> Postings:
        starts, lists = self._array("posting_starts", entries + 1), self._array("posting_lists", -1)
        self._require_rising(starts, len(lists))
        if len(lists) and lists.max() >= size:
            self._fail("it names a list that it does not have")
        return Postings(starts, lists)

    def _require_rising(self, offsets: NDArray[np.int64], end: int) -> None:
        if offsets[0] != 0 or offsets[-1] != end or (offsets[1:] < offsets[:-1]).any():
            self._fail("the offsets of its lists do not rise")

    def _lists(self, presence: Presence) -> ListColumn:
        offsets = self._array("offsets", presence.size + 1)
        dictionary = self._dictionary()
        tokens = self._tokens(dictionary, -1)
        self._require_rising(offsets, len(tokens))
        return ListColumn(
            self.name,
            STRINGS,
            presence,
            tokens=tokens,
            dictionary=dictionary,
            offsets=offsets,
            postings=None if dictionary is None else self._postings(len(dictionary), presence.size),
            require_whole=self._require_whole,
        )
