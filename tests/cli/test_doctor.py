"""`citadel doctor`, `--log-level`, and completion in real shells."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from citadel.cli import doctor
from tests.cli.conftest import Citadel, in_process
from tests.docs.pages import ROOT

FACTS = {"citadel", "python", "platform", "instruction sets", "threads", "huge pages", "GPU"}
FACTS |= {"models", "default model", "model cache"}


def test_doctor_fits_one_screen(citadel: Citadel) -> None:
    lines = citadel("doctor").out.splitlines()
    assert 10 < len(lines) <= 26
    assert {re.split(r"  +", line)[0] for line in lines} >= FACTS


def test_doctor_as_json(citadel: Citadel) -> None:
    facts = json.loads(citadel("doctor", "--json").out)
    assert "(in use)" in facts["instruction sets"] and "numpy" in facts["packages"]
    assert facts.keys() >= FACTS | {"variables", "[server]", "[train]"}


def test_doctor_prints_no_secret(citadel: Citadel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CITADEL_WRITE_TOKEN", "a secret of some length")
    monkeypatch.setenv("CITADEL_MAX_K", "7")
    out = citadel("doctor").out
    assert "CITADEL_WRITE_TOKEN" in out and "CITADEL_MAX_K=7" in out and "a secret" not in out


def test_doctor_names_what_is_missing(
    citadel: Citadel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.metadata.requires", lambda _: ["numpy>=2", "absent>=1; extra == 'eval'"])
    monkeypatch.setattr("citadel.encode.locate.installed_models", list)
    monkeypatch.setattr(doctor, "_HUGE_PAGES", tmp_path / "none")
    facts = json.loads(citadel("doctor", "--json").out)
    assert facts["[eval]"] == "missing: absent"
    assert facts["models"].startswith("missing") and facts["huge pages"] == "not available"


def test_doctor_names_the_default_model(
    citadel: Citadel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "default model     bm25 (CITADEL_MODEL)\n" in citadel("doctor").out
    monkeypatch.setenv("CITADEL_MODEL", str(tmp_path / "gone"))
    gone = json.loads(citadel("doctor", "--json").out)["default model"]
    assert gone.startswith("missing (CITADEL_MODEL): ") and "no such model folder" in gone


def test_doctor_names_the_installed_model(default_model: Path, citadel: Citadel) -> None:
    assert json.loads(citadel("doctor", "--json").out)["default model"] == str(default_model)


def test_doctor_counts_downloaded_models(
    citadel: Citadel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "hub" / "models--org--name").mkdir(parents=True)
    (tmp_path / "hub" / "datasets--org--name").mkdir()
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert json.loads(citadel("doctor", "--json").out)["model cache"] == f"{tmp_path}/hub (1 downloaded)"
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "other"))
    assert json.loads(citadel("doctor", "--json").out)["model cache"] == f"{tmp_path}/other (0 downloaded)"


def test_doctor_asks_nvidia_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771 MiB, 570.1'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert dict(doctor.report())["GPU"] == "NVIDIA H200, 143771 MiB, 570.1"
    program.write_text("#!/bin/sh\nexit 9\n")
    assert dict(doctor.report())["GPU"] == "nvidia-smi failed (CalledProcessError)"


def test_log_level(corpus: Path, tmp_path: Path) -> None:
    build = ["index", corpus, tmp_path / "idx", "--model", "bm25", "--overwrite"]
    assert "committed generation" in in_process("--log-level", "info", *build).err
    assert "committed generation" in in_process(*build, CITADEL_LOG_LEVEL="info").err
    assert "committed generation" not in in_process(*build).err
    refused = in_process("--log-level", "loud", *build)
    assert refused.code == 2 and "choose one of debug, info, warning, error" in refused.err
    assert logging.getLogger("citadel").level in (logging.NOTSET, logging.WARNING)


def test_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "citadel", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("citadel ")


def test_every_variable_is_in_the_table() -> None:
    sources = [*(ROOT / "src").rglob("*.py"), ROOT / "native" / "src" / "dispatch.cpp"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    named = set(re.findall(r"\bCITADEL_[A-Z_]*[A-Z]\b", text)) - {"CITADEL_NAME", "CITADEL_CARD_MEMORY"}
    options = (ROOT / "src" / "citadel" / "cli" / "serve.py").read_text(encoding="utf-8")
    named |= {f"CITADEL_{name}" for name in re.findall(r"_option\(\s*\"([A-Z_]+)\"", options)}
    page = (ROOT / "docs" / "reference" / "config.md").read_text(encoding="utf-8")
    table = page.partition("## Environment variables")[2].partition("## Server")[0]
    assert len(named) > 20
    assert sorted(name for name in named if f"`{name}`" not in table) == []


# Each shell loads the script and completes the beginning of a command.
SHELLS = {
    "bash": 'source "$1"; COMP_WORDS=(citadel doc); COMP_CWORD=1; _citadel_completion; '
    'echo "${COMPREPLY[@]}"',
    "fish": 'source $argv[1]; complete -C "citadel doc"',
    "zsh": 'autoload -U compinit; compinit -D; source "$1"; whence _citadel_completion >/dev/null && '
    "_CITADEL_COMPLETE=complete_zsh _TYPER_COMPLETE_ARGS='citadel doc' citadel",
}


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_in_a_shell(shell: str, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "completion"
    script.write_text(
        in_process("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1").out
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    arguments = [str(script)] if shell == "fish" else ["shell", str(script)]
    done = subprocess.run(
        [program, "-c", SHELLS[shell], *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path, "HOME": str(tmp_path)},
        timeout=60,
        check=False,
    )
    assert "doctor" in done.stdout, done.stdout + done.stderr
