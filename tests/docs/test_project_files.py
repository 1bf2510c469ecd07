"""CITATION.cff, CI and hooks agree with the project."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import citadel
from tests.docs.pages import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_citation_has_version_and_paper() -> None:
    citation = read("CITATION.cff")
    assert citation["version"] == citadel.__version__
    assert citation["license"] == "Apache-2.0" and "citadel-ir" in citation["title"]
    (paper,) = citation["references"]
    assert paper["doi"] == "10.18653/v1/2023.acl-long.663" and len(paper["authors"]) == 8


def test_ci_runs_make_test_and_test_slow() -> None:
    jobs = read(".github/workflows/ci.yml")["jobs"]
    commands = {step["run"] for job in jobs.values() for step in job["steps"] if "run" in step}
    assert commands == {"make test", "make test-slow"}


def test_hooks_are_local() -> None:
    config = read(".pre-commit-config.yaml")
    assert {repo["repo"] for repo in config["repos"]} == {"local"}
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert {hook["id"] for hook in hooks} == {"ruff-check", "ruff-format", "mypy"}
    assert all(re.match(r"\.venv/bin/(ruff|mypy) ", hook["entry"]) for hook in hooks)


def test_contributing_lists_makefile_targets() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"^    make ([\w-]+)", text, re.M))
    makefile = Path(ROOT / "Makefile").read_text(encoding="utf-8")
    known = set(re.findall(r"^([\w-]+):", makefile, re.M))
    assert {"test", "lint"} <= targets <= known
