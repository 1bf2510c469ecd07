"""What a measurement is, and the files it is kept in: NAME.json, NAME.queries.json and NAME.run.xz."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from citadel.errors import InputError
from citadel.types import write_whole

FORMAT = 1
QUERIES, RUN = ".queries.json", ".run.xz"


@dataclass(frozen=True)
class Measurement:
    """One (system, collection, settings); what was not measured is empty. Fields: docs/guides/reproduce.md.

    >>> one = Measurement("CITADEL", "scifact", documents=10, queries=2, postings=600)
    >>> one.postings_a_document
    60.0
    """

    system: str
    collection: str
    documents: int
    queries: int
    measures: Mapping[str, float] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)  # means a query
    postings: int = 0
    list_sizes: list[list[int]] = field(default_factory=list)  # [size, how many lists], largest first
    largest_lists: list[list[Any]] = field(default_factory=list)  # [key, size]
    bytes: int = 0  # lists and semantic vectors; neither ids nor texts
    active_keys: Mapping[str, list[int]] = field(default_factory=dict)  # τ → tokens with 0, 1, … live keys
    settings: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    latency: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def postings_a_document(self) -> float:
        return self.postings / max(self.documents, 1)

    @property
    def bytes_a_document(self) -> float:
        return self.bytes / max(self.documents, 1)

    @property
    def largest_list(self) -> int:
        return self.list_sizes[0][0] if self.list_sizes else 0

    @property
    def dot_products(self) -> float | None:
        """The mean over queries, tokens and semantic vectors together."""
        return self.stages.get("dot_products")


def write_measurement(out: str | os.PathLike[str], found: Measurement) -> None:
    """Write one measurement as JSON, whole or not at all."""
    record = {"format": FORMAT, **asdict(found)}
    write_whole(os.fspath(out), [_dumps(record) + "\n"])


def read_measurement(path: str | os.PathLike[str]) -> Measurement:
    """The measurement of a JSON file; what is wrong with it is said in one sentence.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "citadel.json")
    >>> write_measurement(file, Measurement("CITADEL", "scifact", 10, 2))
    >>> read_measurement(file).system
    'CITADEL'
    """
    found = read_json(path)
    if not isinstance(found, dict) or found.get("format") != FORMAT or "system" not in found:
        raise InputError(f"this is not a measurement of format {FORMAT}: make it with `citadel measure`", str(path))
    known = {part.name for part in fields(Measurement)}
    if unknown := set(found) - known - {"format"}:
        raise InputError(f"unknown field {min(unknown)!r}: make it again with `citadel measure`", str(path))
    try:
        return Measurement(**{name: value for name, value in found.items() if name != "format"})
    except TypeError as error:
        raise InputError(
            f"not a whole measurement ({error}): make it again with `citadel measure`", str(path)
        ) from None


def read_json(path: str | os.PathLike[str]) -> Any:
    """A JSON file."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("there is no such file: check the path", str(path)) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read as JSON ({error}): make it again", str(path)) from None


def beside(path: str | os.PathLike[str], suffix: str) -> Path:
    """The file that belongs to a measurement.

    >>> beside("runs/citadel.json", RUN).name
    'citadel.run.xz'
    """
    given = Path(path)
    return given.with_name(given.name.removesuffix(".json") + suffix)


def measurements_in(folder: str | os.PathLike[str]) -> list[Path]:
    """The measurements of one folder, by name, without the per-query files beside them.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> for name in ("citadel.json", "citadel.queries.json"):
    ...     _ = Path(folder, name).write_text("{}")
    >>> [file.name for file in measurements_in(folder)]
    ['citadel.json']
    """
    return sorted(file for file in Path(folder).glob("*.json") if not file.name.endswith(QUERIES))


def machine() -> dict[str, Any]:
    """Where and when something was measured.

    >>> sorted(machine())
    ['cores', 'cpu', 'date', 'python']
    """
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def _dumps(value: Any) -> str:
    """JSON with one line a field: short lists of numbers stay on it."""
    parts = (f" {json.dumps(name)}: {json.dumps(part, ensure_ascii=False)}" for name, part in value.items())
    return "{\n" + ",\n".join(parts) + "\n}"
