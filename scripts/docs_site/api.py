"""Pages of the API reference, made from the docstrings of the public names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import citadel

_DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.M)


def pages() -> Iterator[tuple[str, str]]:
    """Title and Markdown of each page: one per class or function, one for all errors and warnings."""
    exceptions = []
    for name in citadel.__all__:
        value = getattr(citadel, name)
        if not inspect.isclass(value):
            yield name, _function_page(name, value)
        elif issubclass(value, BaseException):
            exceptions.append((name, value))
        else:
            yield name, _class_page(name, value)
    yield "Errors and warnings", _exceptions_page(exceptions)


def markdown(docstring: str) -> str:
    """A docstring as Markdown: doctests become fenced blocks.

    >>> print(markdown("Add.\\n\\n>>> 1 + 1\\n2"))
    Add.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    text = inspect.cleandoc(docstring)
    return _DOCTEST.sub(lambda match: f"```pycon\n{match[0].replace('<BLANKLINE>', '')}\n```", text)


def _signature(name: str, value: Any, *, owner: str = "") -> str:
    try:
        text = str(inspect.signature(value))
    except (ValueError, TypeError):  # native code
        text = "(…)"
    text = re.sub(r"^\((?:self|cls)(?:, )?", "(", text).replace("'", "")
    if len(owner + name + text) > 90:
        text = _one_per_line(text)
    return f"```python\n{owner}{name}{text}\n```"


def _one_per_line(signature: str) -> str:
    """Break a signature at the commas outside brackets."""
    depth, lines, line = 0, [], ""
    end = signature.rindex(")")
    for character in signature[1:end]:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            lines.append(f"    {line.strip()},")
            line = ""
        else:
            line += character
    return "\n".join(["(", *lines, f"    {line.strip()},", signature[end:]])


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties with a docstring, including those of citadel's own base classes."""
    seen = set()
    for base in cls.__mro__:
        if not base.__module__.startswith("citadel"):
            continue
        for name, value in vars(base).items():
            plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            documented = isinstance(getattr(plain, "__doc__", None), str)
            is_member = inspect.isroutine(plain) or isinstance(plain, property)
            if not name.startswith("_") and name not in seen and is_member and documented:
                seen.add(name)
                yield name, value


def _member(cls: str, name: str, value: Any) -> list[str]:
    plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    heading = f"## {name} {{ #citadel.{cls}.{name} }}"
    if isinstance(plain, property):
        return [heading, "A property.", markdown(plain.__doc__ or "")]
    owner = f"{cls}." if isinstance(value, classmethod | staticmethod) else ""
    return [heading, _signature(name, plain, owner=owner), markdown(plain.__doc__ or "")]


def _class_page(name: str, cls: type) -> str:
    parts = [
        f"# {name} {{ #citadel.{name} }}",
        _signature(name, cls, owner="citadel."),
        markdown(cls.__doc__ or ""),
    ]
    for member, value in sorted(_members(cls)):
        parts += _member(name, member, value)
    return "\n\n".join(parts) + "\n"


def _function_page(name: str, function: Any) -> str:
    parts = [
        f"# {name} {{ #citadel.{name} }}",
        _signature(name, function, owner="citadel."),
        markdown(function.__doc__ or ""),
    ]
    return "\n\n".join(parts) + "\n"


def _exceptions_page(exceptions: list[tuple[str, type[BaseException]]]) -> str:
    parts = [
        "# Errors and warnings",
        "All errors are subclasses of `citadel.CitadelError`.",
    ]
    for name, cls in exceptions:
        bases = ", ".join(f"`{base.__name__}`" for base in cls.__bases__)
        parts += [f"## {name} {{ #citadel.{name} }}", f"A subclass of {bases}.", markdown(cls.__doc__ or "")]
    return "\n\n".join(parts) + "\n"
