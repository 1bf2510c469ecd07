"""Print the docstrings of Python's standard library, one JSON object per line.

`passages` runs this script in a separate process, because importing every module has side effects (handlers,
warnings, output). It imports the standard library only.
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

# Modules that act on import (open a browser, print a poem, need a display) or have no useful documentation.
SKIPPED = {
    "antigravity", "distutils", "encodings", "ensurepip", "idle_test", "idlelib", "lib2to3", "pydoc_data",
    "sre_compile", "sre_constants", "sre_parse", "test", "tests", "this", "tkinter", "turtle", "turtledemo",
}  # fmt: skip
MIN_TEXT = 20  # characters; shorter docstrings are labels
MAX_SIGNATURE = 100  # characters
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # differs between runs
Passage = dict[str, str]


def is_public(name: str) -> bool:
    """Whether a module or member of this name is public."""
    return not name.startswith("_") and name not in SKIPPED


def module_names(name: str) -> Iterator[str]:
    """Yield a module and its submodules; those that cannot be imported are left out."""
    if not all(is_public(part) for part in name.split(".")) or name in SKIPPED:
        return
    module = load(name)
    if module is None:
        return
    yield name
    for info in sorted(
        pkgutil.iter_modules(getattr(module, "__path__", []), f"{name}."), key=lambda info: info.name
    ):
        yield from module_names(info.name)


def load(name: str) -> ModuleType | None:
    """Import a module; None if this platform does not have it."""
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit):
        return None


def members(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the public classes and functions of a module: those in `__all__`, else those it defines."""
    listed = getattr(module, "__all__", None)
    for name in sorted({str(name) for name in (listed if listed is not None else dir(module))}):
        value = getattr(module, name, None)
        own = listed is not None or getattr(value, "__module__", None) == module.__name__
        if is_public(name) and own and (inspect.isclass(value) or inspect.isroutine(value)):
            yield name, value


def methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that a class defines itself."""
    for name, value in sorted(vars(cls).items()):
        plain = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if is_public(name) and (inspect.isroutine(plain) or inspect.isdatadescriptor(plain)):
            yield name, plain


def documentation(value: Any) -> str:
    """Return the docstring without indentation; empty if it is missing or too short."""
    text = getattr(value, "__doc__", None)
    if not isinstance(text, str):
        return ""
    text = ADDRESS.sub("", inspect.cleandoc(text)).strip()
    return text if len(text) >= MIN_TEXT else ""


def signature(value: Any) -> str:
    """Return the parameters of a callable; empty if Python does not know them."""
    try:
        text = ADDRESS.sub("", str(inspect.signature(value))) if callable(value) else ""
    except Exception:  # `inspect.signature` can run code of the object
        return ""
    return text if len(text) <= MAX_SIGNATURE else text[:MAX_SIGNATURE].rpartition(",")[0] + ", …)"


def summary(cls: type) -> str:
    """Return the first line of a class's docstring that is not a signature; empty if there is none."""
    lines = (line.strip() for line in documentation(cls).splitlines())
    return next((line for line in lines if line and "(" not in line), "")


def passage(kind: str, module: str, name: str, value: Any, of: type | None = None) -> Passage | None:
    """Make a passage; None without documentation. A property also gets the summary of its class."""
    text = documentation(value)
    if not text:
        return None
    if of is not None and inspect.isdatadescriptor(value) and summary(of):
        text = f"{text}\n\n{of.__name__}: {summary(of)}"
    return {"id": name, "kind": kind, "module": module, "title": name + signature(value), "text": text}


def module_passages(module: ModuleType) -> Iterator[Passage | None]:
    """Yield the passages of a module, of its classes and functions, then of the methods."""
    name = module.__name__
    public = list(members(module))
    yield passage("module", name, name, module)
    for member, value in public:
        yield passage("class" if inspect.isclass(value) else "function", name, f"{name}.{member}", value)
    for member, value in public:
        if inspect.isclass(value):
            for method, function in methods(value):
                yield passage("method", name, f"{name}.{member}.{method}", function, value)


@contextlib.contextmanager
def silenced() -> Iterator[TextIO]:
    """Redirect output of the modules to /dev/null; yield the real standard output."""
    with (
        os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace") as out,
        open(os.devnull, "w") as null,
    ):
        os.dup2(null.fileno(), 1)
        os.dup2(null.fileno(), 2)
        yield out


def main() -> None:
    """Print every passage, module by module in alphabetical order."""
    with silenced() as out:
        for top in sorted(sys.stdlib_module_names):
            for name in module_names(top):
                for item in module_passages(sys.modules[name]):
                    if item:
                        out.write(json.dumps(item) + "\n")
        out.flush()
        os._exit(0)  # skip the exit handlers that modules registered


if __name__ == "__main__":
    main()
