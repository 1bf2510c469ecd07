"""Measurement records and their files: NAME.json, NAME.queries.json and NAME.run.xz."""

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
from citadel.files import write_whole

FORMAT = 1
QUERIES, RUN = ".queries.json", ".run.xz"


@dataclass(frozen=True)
class Measurement:
    """Measurement of one system, collection and settings; docs/guides/reproduce.md explains every field.

    Fields that were not measured are empty.

    >>> one = Measurement("CITADEL", "scifact", documents=10, queries=2, postings=600)
    >>> one.postings_per_document
    60.0
    """

    system: str
    collection: str
    documents: int
    queries: int
    measures: Mapping[str, float] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)  # means per query
    postings: int = 0
    list_sizes: list[list[int]] = field(default_factory=list)  # [size, number of lists], largest first
    largest_lists: list[list[Any]] = field(default_factory=list)  # [key, size]
    bytes: int = 0  # of lists and semantic vectors, without ids and texts
    # τ → number of tokens with 0, 1, … keys
    active_keys: Mapping[str, list[int]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    latency: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def postings_per_document(self) -> float:
        return self.postings / max(self.documents, 1)

    @property
    def bytes_per_document(self) -> float:
        return self.bytes / max(self.documents, 1)

    @property
    def largest_list(self) -> int:
        return self.list_sizes[0][0] if self.list_sizes else 0

    @property
    def dot_products(self) -> float | None:
        """Mean per query, token and semantic products together."""
        return self.stages.get("dot_products")


def write_measurement(out: str | os.PathLike[str], measurement: Measurement) -> None:
    """Write one measurement as JSON, atomically."""
    record = {"format": FORMAT, **asdict(measurement)}
    write_whole(os.fspath(out), [_dumps(record) + "\n"])


def read_measurement(path: str | os.PathLike[str]) -> Measurement:
    """Read a measurement from its JSON file.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "citadel.json")
    >>> write_measurement(file, Measurement("CITADEL", "scifact", 10, 2))
    >>> read_measurement(file).system
    'CITADEL'
    """
    data = read_json(path)
    if not isinstance(data, dict) or data.get("format") != FORMAT or "system" not in data:
        raise InputError(f"not a measurement of format {FORMAT}: make it with `citadel measure`", str(path))
    known = {part.name for part in fields(Measurement)}
    if unknown := set(data) - known - {"format"}:
        raise InputError(f"unknown field {min(unknown)!r}: make it again with `citadel measure`", str(path))
    try:
        return Measurement(**{name: value for name, value in data.items() if name != "format"})
    except TypeError as error:
        raise InputError(
            f"incomplete measurement ({error}): make it again with `citadel measure`", str(path)
        ) from None


def read_json(path: str | os.PathLike[str]) -> Any:
    """Parse a JSON file."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such file: check the path", str(path)) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read as JSON ({error}): make it again", str(path)) from None


def beside(path: str | os.PathLike[str], suffix: str) -> Path:
    """Path of a file that belongs to a measurement.

    >>> beside("runs/citadel.json", RUN).name
    'citadel.run.xz'
    """
    given = Path(path)
    return given.with_name(given.name.removesuffix(".json") + suffix)


def measurements_in(folder: str | os.PathLike[str]) -> list[Path]:
    """List the measurement files of one folder, sorted, without the per-query files beside them.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> for name in ("citadel.json", "citadel.queries.json"):
    ...     _ = Path(folder, name).write_text("{}")
    >>> [file.name for file in measurements_in(folder)]
    ['citadel.json']
    """
    return sorted(file for file in Path(folder).glob("*.json") if not file.name.endswith(QUERIES))


def machine() -> dict[str, Any]:
    """Machine and date of a measurement.

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
    """Format JSON with one line per field, which keeps diffs readable."""
    parts = (f" {json.dumps(name)}: {json.dumps(part, ensure_ascii=False)}" for name, part in value.items())
    return "{\n" + ",\n".join(parts) + "\n}"
