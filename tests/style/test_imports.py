"""Import contracts hold, heavy libraries are imported lazily, and only storage opens index files."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.style.calls import ROOT, SOURCE, calls

HEAVY = ("torch", "onnxruntime")
FRAMEWORKS = ("haystack", "langchain_core", "llama_index", "mcp", "mteb", "pyterrier")
LAZY = (
    "citadel.integrations.",
    "citadel.search.gpu.",
    "citadel.bench.exact",
    "citadel.bench.gpu_stages",
    "citadel.paper.exact",
    "citadel.model",
    "citadel.train",
)  # imported on demand only

# Attempts are recorded before any finder runs, so that the result does not depend on what is installed.
# The finder of an editable install wins over PYTHONPATH, so it is removed to import a planted package.
PLANTED = (
    "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'ScikitBuild' not in type(f).__name__]\n"
)
PROBE = """
import importlib, pkgutil, sys

class Watch:
    seen = []
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            self.seen.append(name)

sys.meta_path.insert(0, Watch())
package = importlib.import_module("citadel")
if sys.argv[2] == "all":
    for module in pkgutil.walk_packages(package.__path__, "citadel."):
        if not module.name.endswith("__main__") and not module.name.startswith(tuple(sys.argv[3].split(","))):
            importlib.import_module(module.name)
print("imported:", *Watch.seen)
"""


def heavy_imports(what: str, source: Path, libraries: tuple[str, ...] = HEAVY) -> list[str]:
    program = PROBE if source == SOURCE.parent else PLANTED + PROBE
    command = [sys.executable, "-c", program, ",".join(libraries), what, ",".join(LAZY)]
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout.split("imported:")[-1].split()


def test_import_citadel_needs_no_heavy_library() -> None:
    assert heavy_imports("citadel", SOURCE.parent) == []


def test_no_module_of_the_core_imports_a_heavy_library() -> None:
    assert heavy_imports("all", SOURCE.parent) == []


@pytest.mark.parametrize("what", ["citadel", "all"])
def test_only_the_integrations_import_frameworks(what: str) -> None:
    """With `all`, every module is imported, among them those of the command line."""
    assert heavy_imports(what, SOURCE.parent, FRAMEWORKS) == []


@pytest.mark.parametrize("line", ["import torch", "from onnxruntime import InferenceSession"])
def test_planted_heavy_import_is_detected(line: str, tmp_path: Path) -> None:
    package = tmp_path / "citadel"
    package.mkdir()
    (package / "__init__.py").write_text(f"try:\n    {line}\nexcept ImportError:\n    pass\n")
    assert heavy_imports("citadel", tmp_path)[0] in HEAVY


# Import contracts


def lint_imports(source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("importlinter", reason="import-linter is not installed: `make setup`")
    program = (
        PLANTED + "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    )
    shutil.copy(ROOT / "pyproject.toml", folder)
    environment = os.environ | {"PYTHONPATH": str(source)}
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def test_import_contracts_hold(tmp_path: Path) -> None:
    process = lint_imports(SOURCE.parent, tmp_path)
    assert process.returncode == 0, process.stdout


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("types.py", "import citadel.routing.formula"),
        ("routing/formula.py", "import citadel.eval.runs"),
        ("routing/formula.py", "import torch"),
        ("text/files.py", "import citadel.index.container"),
    ],
)
def test_planted_import_breaks_a_contract(file: str, line: str, tmp_path: Path) -> None:
    shutil.copytree(
        SOURCE, tmp_path / "src" / "citadel", ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    planted = tmp_path / "src" / "citadel" / file
    planted.write_text(planted.read_text() + f"\n{line}\n")
    process = lint_imports(tmp_path / "src", tmp_path)
    assert process.returncode == 1, process.stdout + process.stderr
    assert "BROKEN" in process.stdout


# Access to files

OPENERS = {
    "open", "io.open", "os.open", "mmap.mmap", "sqlite3.connect",
    "numpy.load", "numpy.fromfile", "numpy.memmap",
    "os.replace", "os.rename", "os.remove", "os.unlink", "os.truncate", "os.link", "os.symlink",
    "shutil.rmtree", "shutil.copy", "shutil.copyfile", "shutil.move",
    "?.open", "?.read_bytes", "?.read_text", "?.write_bytes", "?.write_text", "?.unlink", "?.rename",
    "?.tofile",
}  # fmt: skip
ALLOWED = {
    "index/storage.py": OPENERS,
    "index/object_store.py": OPENERS,  # the storage of an object store: its spool and its cache
    "index/obstore_bucket.py": {"?.open"},  # writes a copy into that cache
    "index/backup.py": {
        "os.link",
        "os.rename",
        "shutil.rmtree",
    },  # the copy as a whole; bytes go through storage
    "index/folder_lock.py": {"os.open"},  # LOCK, which holds no data
    "index/documents.py": {"sqlite3.connect", "?.open"},  # a scratch database, copied through the storage
    "index/growable.py": {"mmap.mmap"},  # anonymous memory
    "index/npz.py": {"numpy.memmap", "?.open"},  # the caller's .npz, and an anonymous temporary file
}


def opened_files(source: str) -> set[str]:
    """Functions in this source that open, move or remove files without the storage."""
    return {name for call, name in calls(ast.parse(source)) if name in OPENERS and not asks_storage(call)}


def asks_storage(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value).endswith("storage")


def test_only_storage_opens_index_files() -> None:
    opened = {
        str(path.relative_to(SOURCE)): opened_files(path.read_text())
        for folder in ("index", "search")
        for path in sorted((SOURCE / folder).rglob("*.py"))
    }
    assert "index/storage.py" in opened
    beyond = {file: names - ALLOWED.get(file, set()) for file, names in opened.items()}
    assert {file: names for file, names in beyond.items() if names} == {}


@pytest.mark.parametrize(
    "planted",
    ["open(path)", "import os\nos.replace(a, b)", "path.read_bytes()", "import numpy as np\nnp.memmap(path)"],
)
def test_planted_open_is_detected(planted: str) -> None:
    assert opened_files(planted)


def test_calls_to_storage_are_allowed() -> None:
    assert opened_files("self._storage.rename(a, b)\nstorage.open(name)") == set()


# Doctests


def test_doctests_of_every_module_are_collected() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert "src" in options["testpaths"]
    assert "--doctest-modules" in options["addopts"]
