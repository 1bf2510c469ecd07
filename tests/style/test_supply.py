"""No code is run from data, no shell is used, and no machine-specific location is named."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.style.calls import ROOT, calls, imports

FOLDERS = ("src", "tests", "scripts", "benchmarks", "examples", "docs", "native", "configs", ".ci")
IGNORED = {"__pycache__", "build", "bench-out", ".git"}  # .git is a file in a worktree
TEXTS = {
    ".py",
    ".pyi",
    ".md",
    ".toml",
    ".txt",
    ".sh",
    ".cpp",
    ".hpp",
    ".h",
    ".cmake",
    ".lock",
    ".json",
    ".yml",
    ".yaml",
    "",
}

MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "torch.load"}
CALLS = {
    "eval", "exec", "builtins.eval", "builtins.exec", "torch.load", "os.system", "os.popen",
    "yaml.load", "yaml.full_load", "yaml.unsafe_load",
}  # fmt: skip
ONLY_FALSE = {"allow_pickle", "shell", "trust_remote_code"}
LOADERS = {"__import__", "importlib.import_module"}

# The one file that reads pickled checkpoints: torch.load with weights_only, no other offence.
EXEMPT = {("src/citadel/model/importer/pickled.py", "torch.load()")}

# Written in pieces, so that this file does not contain them itself.
LOCATIONS = [
    *(re.escape(".".join(host)) for host in (
        ("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("npmjs", "com"), ("crates", "io"),
        ("anaconda", "org"), ("download", "pytorch", "org"), ("rubygems", "org"), ("docker", "io"),
    )),
    r"\.\./" + "shared",
    r"(?<![\w./-])/" + r"work(?![\w-])",
    r"(?<!\w)\." + r"library(?!\w)",
]  # fmt: skip
LOCATION = re.compile("|".join(LOCATIONS))


def code_offences(source: str) -> Iterator[tuple[int, str]]:
    """(line, what) of everything in Python source that could run code from elsewhere."""
    tree = ast.parse(source)
    for line, _, full in imports(tree):
        if full in MODULES or full.partition(".")[0] in MODULES:
            yield line, f"import {full}"
    for call, name in calls(tree):
        if name in CALLS:
            yield call.lineno, f"{name}()"
        if name in LOADERS and call.args and constant(call.args[0]) in MODULES:
            yield call.lineno, f"{name}({constant(call.args[0])!r})"
        yield from (
            (call.lineno, f"{word.arg}=") for word in call.keywords if is_switch(word.arg, word.value)
        )
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            yield from (
                (node.lineno, f"{constant(key)!r}:")
                for key, value in pairs
                if is_switch(constant(key), value)
            )


def constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def is_switch(name: object, value: ast.expr) -> bool:
    return name in ONLY_FALSE and constant(value) is not False


def location_offences(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if match := LOCATION.search(line):
            yield number, match.group()


def files() -> list[Path]:
    inside = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    texts = [path for path in (*inside, *ROOT.iterdir()) if path.is_file() and path.suffix in TEXTS]
    return sorted(path for path in texts if not IGNORED & set(path.relative_to(ROOT).parts))


def test_no_code_from_data() -> None:
    python = [path for path in files() if path.suffix in (".py", ".pyi")]
    assert python
    assert [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in python
        for line, what in code_offences(path.read_text())
        if (str(path.relative_to(ROOT)), what) not in EXEMPT
    ] == []


def test_exempt_file_reads_weights_only() -> None:
    [(name, _)] = EXEMPT
    loads = [call for call, full in calls(ast.parse((ROOT / name).read_text())) if full == "torch.load"]
    assert len(loads) == 1
    switches = {word.arg: constant(word.value) for word in loads[0].keywords}
    assert switches["weights_only"] is True


def test_no_machine_specific_location() -> None:
    assert [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in files()
        for line, what in location_offences(path.read_text(errors="replace"))
    ] == []


@pytest.mark.parametrize(
    "offence",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "import os, shelve",
        "def f():\n    import joblib",
        "from torch import load",
        "import torch\ntorch.load(f)",
        "import torch as t\nt.load(f)",
        "import torch.nn\ntorch.load(f)",
        "__import__('pickle')",
        "import importlib\nimportlib.import_module('dill')",
        "eval(text)",
        "exec(text)",
        "import builtins\nbuiltins.eval(text)",
        "from builtins import exec as run\nrun(text)",
        "import yaml\nyaml.load(f)",
        "from yaml import load\nload(f)",
        "import os\nos.system(text)",
        "import subprocess\nsubprocess.run(text, shell=True)",
        "run(text, shell=flag)",
        "run(text, **{'shell': True})",
        "import numpy as np\nnp.load(f, allow_pickle=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
    ],
)
def test_planted_code_is_detected(offence: str) -> None:
    assert list(code_offences(offence))


@pytest.mark.parametrize(
    "harmless",
    [
        "model.eval()",
        "cursor.exec(text)",
        "import yaml\nyaml.safe_load(f)",
        "import numpy as np\nnp.load(f, allow_pickle=False)",
        "import subprocess\nsubprocess.run(['ls'], shell=False)",
        "import json\njson.load(f)",
        "# import pickle",
        "text = 'eval(x)'",
    ],
)
def test_harmless_code_is_accepted(harmless: str) -> None:
    assert list(code_offences(harmless)) == []


@pytest.mark.parametrize(
    "location",
    [
        "https://py" "pi.org/x", "files.python" "hosted.org", "../" "shared/data", "'/" "work/main'",
        "see ." "library/x",
    ],
)  # fmt: skip
def test_planted_locations_are_detected(location: str) -> None:
    assert list(location_offences(location))


@pytest.mark.parametrize(
    "harmless",
    ["pip install citadel-ir", "/workers/2", "native/work.cpp", "a library", "citadel.api", "shared/data"],
)
def test_harmless_text_is_accepted(harmless: str) -> None:
    assert list(location_offences(harmless)) == []
