"""Core dependencies are only those that the core imports."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES = {"backports.zstd": "backports", "pystemmer": "Stemmer"}  # modules whose name differs


def test_every_core_dependency_is_imported_outside_of_training() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.match(r"[\w.-]+", line)[0].lower() for line in project["dependencies"]]  # type: ignore[index]
    package = ROOT / "src" / "citadel"
    core = [
        path for path in package.rglob("*.py") if path.relative_to(package).parts[0] not in ("model", "train")
    ]
    source = "\n".join(path.read_text() for path in core)
    unused = [
        name
        for name in names
        if not re.search(rf"^\s*(?:from|import) {MODULES.get(name, name)}\b", source, re.MULTILINE)
    ]
    assert unused == []
