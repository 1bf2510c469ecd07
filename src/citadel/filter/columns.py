"""Typed metadata columns: built row by row, written with their segment, and filtered as a whole."""

from __future__ import annotations

from citadel.filter.build import ColumnsBuilder, build_column, build_columns
from citadel.filter.column import Column
from citadel.filter.complete import CompleteColumns
from citadel.filter.evaluate import ColumnLookup, Stored, check_types, common_kind, mask
from citadel.filter.facets import facet, ranked
from citadel.filter.layout import Columns, ColumnsError

__all__ = [
    "Column",
    "ColumnLookup",
    "Columns",
    "ColumnsBuilder",
    "ColumnsError",
    "CompleteColumns",
    "Stored",
    "build_column",
    "build_columns",
    "check_types",
    "common_kind",
    "facet",
    "mask",
    "ranked",
]
