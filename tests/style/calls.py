"""Find imports and calls in Python source, by their full names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "citadel"


def imports(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """(line, local name, full name) of every import, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.partition(".")[0]
                yield node.lineno, local, alias.name if alias.asname else local
                yield node.lineno, "", alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, alias.asname or alias.name, f"{node.module or ''}.{alias.name}"


def calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Every call with the full name of its function; a method of an unknown object is `?.name`."""
    known = {local: full for _, local, full in imports(tree) if local}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node, full_name(node.func, known)


def full_name(node: ast.expr, known: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return known.get(node.id, node.id)
    if not isinstance(node, ast.Attribute):
        return "?"
    holder = full_name(node.value, known)
    is_module = isinstance(node.value, ast.Attribute) or (
        isinstance(node.value, ast.Name) and node.value.id in known
    )
    return f"{holder}.{node.attr}" if is_module and not holder.startswith("?") else f"?.{node.attr}"
