"""Prints the documentation of the running Python's own library, one JSON object a line.

A script of the standard library alone: `passages` starts it in a process of its own, because importing every module
there is has side effects (handlers, warnings, output) that a caller's process should not see.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import pkgutil
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, TextIO

# Modules that act when imported (open a browser, print a poem, need a screen) or hold no documentation worth finding.
SKIPPED = {"antigravity", "distutils", "encodings", "ensurepip", "idle_test", "idlelib", "lib2to3", "pydoc_data"}
SKIPPED |= {"sre_compile", "sre_constants", "sre_parse", "test", "tests", "this", "tkinter", "turtle", "turtledemo"}
SHORTEST = 20  # characters; less is a label, not documentation
LONGEST_SIGNATURE = 100  # characters
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # changes from run to run
Passage = dict[str, str]


def is_public(name: str) -> bool:
    """Whether a module or member of this name is for users."""
    return not name.startswith("_") and name not in SKIPPED


def module_names(name: str) -> Iterator[str]:
    """A module and, for a package, all it holds; what cannot be imported here is left out."""
    if not all(is_public(part) for part in name.split(".")) or name in SKIPPED:
        return
    module = load(name)
    if module is None:
        return
    yield name
    for info in sorted(pkgutil.iter_modules(getattr(module, "__path__", []), f"{name}."), key=lambda info: info.name):
        yield from module_names(info.name)


def load(name: str) -> ModuleType | None:
    """The module, or None where this platform lacks it."""
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit):
        return None


def members(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The public classes and functions of a module: what it lists, or else what it defines."""
    listed = getattr(module, "__all__", None)
    for name in sorted({str(name) for name in (listed if listed is not None else dir(module))}):
        value = getattr(module, name, None)
        own = listed is not None or getattr(value, "__module__", None) == module.__name__
        if is_public(name) and own and (inspect.isclass(value) or inspect.isroutine(value)):
            yield name, value


def methods(cls: type) -> Iterator[tuple[str, Any]]:
    """The public methods, properties and other documented attributes a class defines itself."""
    for name, value in sorted(vars(cls).items()):
        plain = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if is_public(name) and (inspect.isroutine(plain) or inspect.isdatadescriptor(plain)):
            yield name, plain


def documentation(value: Any) -> str:
    """The value's own docstring without indentation; empty when it is missing, inherited or too short."""
    text = getattr(value, "__doc__", None)
    if not isinstance(text, str):
        return ""
    text = ADDRESS.sub("", inspect.cleandoc(text)).strip()
    return text if len(text) >= SHORTEST else ""


def signature(value: Any) -> str:
    """The parameters of a callable, empty when Python does not know them."""
    try:
        text = ADDRESS.sub("", str(inspect.signature(value))) if callable(value) else ""
    except Exception:  # a signature can run code of the object
        return ""
    return text if len(text) <= LONGEST_SIGNATURE else text[:LONGEST_SIGNATURE].rpartition(",")[0] + ", …)"


def summary(cls: type) -> str:
    """The first sentence of a class's own docstring that is no signature, empty where there is none."""
    lines = (line.strip() for line in documentation(cls).splitlines())
    return next((line for line in lines if line and "(" not in line), "")


def passage(kind: str, module: str, name: str, value: Any, of: type | None = None) -> Passage | None:
    """One passage, or None for a value without documentation; an attribute's line also says what it is `of`."""
    text = documentation(value)
    if not text:
        return None
    if of is not None and inspect.isdatadescriptor(value) and summary(of):
        text = f"{text}\n\n{of.__name__}: {summary(of)}"
    return {"id": name, "kind": kind, "module": module, "title": name + signature(value), "text": text}


def module_passages(module: ModuleType) -> Iterator[Passage | None]:
    """The module itself, then its classes and functions, then the methods: the general before the particular."""
    name = module.__name__
    found = list(members(module))
    yield passage("module", name, name, module)
    for member, value in found:
        yield passage("class" if inspect.isclass(value) else "function", name, f"{name}.{member}", value)
    for member, value in found:
        if inspect.isclass(value):
            for method, function in methods(value):
                yield passage("method", name, f"{name}.{member}.{method}", function, value)


@contextlib.contextmanager
def silenced() -> Iterator[TextIO]:
    """The real standard output, while all that modules print goes nowhere."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace") as out, open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        yield out


def main() -> None:
    """Print every passage, module by module in alphabetical order."""
    with silenced() as out:
        for top in sorted(sys.stdlib_module_names):
            for name in module_names(top):
                for found in module_passages(sys.modules[name]):
                    if found:
                        out.write(json.dumps(found) + "\n")
        out.flush()
        os._exit(0)  # some modules register work for the end of the process


if __name__ == "__main__":
    main()
