"""Exit codes, one-line errors, lazy imports and shell completion."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from citadel.cli import main, stats
from citadel.errors import (
    Cancelled,
    CitadelError,
    CorruptIndexError,
    IndexNotFoundError,
    InputError,
    LockHeldError,
    ResourceError,
    UsageError,
)
from citadel.index.storage import FolderStorage
from tests.cli.conftest import Citadel, in_process, start

COMMANDS = (
    "index",
    "add",
    "delete",
    "update",
    "list",
    "count",
    "facets",
    "merge",
    "check",
    "stats",
    "search",
    "explain",
    "eval",
    "demo",
    "doctor",
)


def test_version_names_format_and_instruction_set(citadel: Citadel) -> None:
    assert re.fullmatch(
        r"citadel 0\.\d+\.\d+ \(format 2, (portable|avx2|avx512vnni|neon)\)\n", citadel("--version").out
    )


def test_citadel_isa_selects_an_available_instruction_set() -> None:
    assert "portable" in in_process("--version", CITADEL_ISA="portable").out
    done = in_process("--version", CITADEL_ISA="quantum")
    assert done.code == 2
    assert "'quantum' cannot be used" in done.err


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_names_every_command(option: str, citadel: Citadel) -> None:
    out = citadel(option).out
    assert [command for command in COMMANDS if not re.search(rf"^  {command} ", out, re.MULTILINE)] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, citadel: Citadel) -> None:
    assert f"Usage: citadel {command}" in citadel(command, "--help").out


PROBE = """
import sys
from citadel.cli.main import run
code = run(sys.argv[1:])
heavy = ("numpy", "rich", "citadel.api", "citadel._native", "ir_measures")
print("loaded:", *(name for name in heavy if name in sys.modules))
sys.exit(code)
"""


@pytest.mark.parametrize(
    "arguments", [["--help"], ["index", "--help"], ["search", "--help"], ["eval"], ["nonsense"]]
)
def test_help_and_usage_errors_load_no_heavy_module(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "loaded:", done.stderr


def test_import_citadel_is_lazy_and_gives_every_public_name() -> None:
    code = (
        "import sys, citadel; print('numpy' in sys.modules); [getattr(citadel, x) for x in citadel.__all__]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# ---- usage: 2 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["index"], "Missing argument 'CORPUS'"),
        (["index", "a.jsonl", "idx", "--nonsense"], "No such option: --nonsense"),
        (["search", "idx", "q", "-k", "ten"], "Invalid value for '-k'"),
        (["search", "idx", "q", "-k", "-1"], "Invalid value for '-k'"),
        (["search", "idx", "q", "--threads", "0"], "Invalid value for '--threads'"),
        (["search", "idx"], "name either queries"),
        (["search", "idx", "q", "--queries", "f.jsonl"], "name either queries"),
        (["delete", "idx"], "nothing to delete"),
        (["eval", "idx", "--queries", "q.jsonl"], "judgements are missing"),
        (["eval", "--qrels", "q.txt"], "name either an INDEX"),
        (["eval", "idx", "--run", "r", "--qrels", "q.txt"], "name either an INDEX"),
        (["eval", "idx", "--qrels", "q.txt"], "an INDEX needs --queries"),
        (
            ["index", "a.jsonl", "idx", "--model", "bm25", "--router", "bm25"],
            "--router and --model exclude each other",
        ),
        (["index", "a.jsonl", "idx", "--codec", "pq2"], "--codec is for a corpus of vectors"),
        (["index", "a.jsonl", "idx", "--tau", "1"], "--tau is for a corpus of vectors"),
        (["index", "a.npz", "idx", "--k1", "1"], "--k1 is for a corpus of text"),
        (["index", "a.npz", "idx"], "vectors need --fingerprint"),
        (["index", "a.jsonl", "idx", "--memory", "much"], "--memory 'much' is not a size"),
        (["index", "a.jsonl", "idx", "--on-error", "ignore"], "fail or skip"),
    ],
)
def test_usage_errors_are_exit_2_in_one_line(
    arguments: list[str], message: str, citadel: Citadel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = citadel(*arguments, code=2)
    assert message in done.err
    assert len(done.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_no_arguments_print_help_and_exit_2() -> None:
    done = in_process()
    assert done.code == 2
    assert "Commands:" in done.out


# ---- exit codes of errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (CitadelError("odd"), 1, "odd"),
        (Cancelled("stopped"), 1, "stopped"),
        (UsageError("no"), 2, "no"),
        (CorruptIndexError("seg-1.cit", "header", "torn"), 3, "seg-1.cit: header: torn"),
        (IndexNotFoundError("none"), 4, "none"),
        (InputError("bad", "f", 3), 4, "f:3: bad"),
        (LockHeldError("busy"), 5, "busy"),
        (ResourceError("full"), 6, "full"),
        (MemoryError(), 6, "out of memory"),
        (OSError(errno.ENOSPC, "x", "file"), 6, "file: no space left on device"),
        (PermissionError(errno.EACCES, "x", "file"), 4, "file: permission denied"),
        (
            ZeroDivisionError("two\nlines"),
            1,
            r"please report it with the output of CITADEL_DEBUG=1 (ZeroDivisionError: two\nlines)",
        ),
    ],
)
def test_errors_end_with_their_code_and_one_line(
    error: Exception, code: int, message: str, index: Path, citadel: Citadel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(stats, "print_json", fail)
    done = citadel("stats", index, "--json", code=code)
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_citadel_debug_prints_the_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CITADEL_DEBUG", "1")
    assert main.report(ZeroDivisionError("half")) == 1
    assert "Traceback" in (err := capsys.readouterr().err) or "ZeroDivisionError: half\n" in err


def test_interrupt_is_exit_130(index: Path, citadel: Citadel, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stats, "print_json", interrupt)
    assert citadel("stats", index, "--json", code=130).err == ""


def test_closed_stdout_prints_no_error(index: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "citadel.cli", "stats", str(index)]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert done.stderr == ""
    assert done.returncode == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_output_to_a_full_disk_is_exit_6(index: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "citadel.cli", "stats", str(index)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 6
    assert done.stderr.startswith("citadel: no space left on device")


def test_control_characters_in_names_are_escaped(citadel: Citadel, tmp_path: Path) -> None:
    assert r"\x1b[31m" in citadel("stats", tmp_path / "\x1b[31mred", code=4).err


def test_ids_are_escaped_on_an_ascii_terminal(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(json.dumps({"id": "é", "text": "café"}), encoding="utf-8")
    assert in_process("index", corpus, tmp_path / "idx").code == 0
    done = in_process("search", tmp_path / "idx", "café", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.code == 0
    assert r"caf\xe9" in done.out


# ---- missing, damaged and locked indexes -------------------------------------------------------------------


@pytest.mark.parametrize("command", [["stats"], ["check"], ["merge"], ["delete", "d1"], ["search", "q"]])
def test_missing_index_is_exit_4_and_is_not_created(
    command: list[str], citadel: Citadel, tmp_path: Path
) -> None:
    done = citadel(command[0], tmp_path / "idx", *command[1:], code=4)
    assert "there is no index; create one with `citadel index CORPUS" in done.err
    assert not (tmp_path / "idx").exists()


@pytest.mark.parametrize("command", [["stats"], ["check"], ["search", "q"], ["add", "corpus.jsonl"]])
def test_file_instead_of_an_index_is_exit_4(command: list[str], citadel: Citadel, corpus: Path) -> None:
    before = corpus.read_bytes()
    citadel(command[0], corpus, *command[1:], code=4)
    citadel("index", corpus, corpus, code=4)
    assert corpus.read_bytes() == before


def test_damaged_index_is_exit_3_with_file_and_section(index: Path, citadel: Citadel) -> None:
    newest = max(index.glob("gen.*"))
    newest.write_bytes(newest.read_bytes().replace(b'"k1"', b'"k2"'))
    assert f"{newest.name}: manifest: " in citadel("search", index, "q", code=3).err


def test_second_writer_is_exit_5(index: Path, corpus: Path, citadel: Citadel) -> None:
    from citadel import Index

    with Index.open(index) as holder:
        holder.delete([])
        for command in (["add", index, corpus], ["delete", index, "d1"], ["merge", index]):
            assert "another writer" in citadel(*command, code=5).err
        citadel("search", index, "physics")


def test_sigint_stops_a_build_with_130(tmp_path: Path) -> None:
    fifo = tmp_path / "corpus.jsonl"
    os.mkfifo(fifo)
    process = start("index", fifo, tmp_path / "idx")
    with open(fifo, "wb") as out:  # returns when the build has opened its end
        out.write(b'{"id": "d1", "text": "a"}\n')
        out.flush()
        while not list((tmp_path / "idx").glob("gen.*1")):
            assert process.poll() is None
        process.send_signal(2)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "rerun the same command to resume" in err


def test_read_only_file_system_is_reported(
    index: Path, citadel: Citadel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(FolderStorage, "lock", refuse)
    message = citadel("delete", index, "d1", code=6).err
    assert "read-only file system" in message and "mount it for writing, or choose another folder" in message
    assert "room" not in message
    error = OSError(errno.EROFS, "", "out.trec")
    assert main.explain(error) == (
        "out.trec: read-only file system; mount it for writing, or choose another folder",
        6,
    )


def test_port_in_use_is_a_usage_error(index: Path, citadel: Citadel) -> None:
    pytest.importorskip("uvicorn", reason="the server is not installed: the extra [server]")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = citadel("serve", index, "--port", port, code=2)
    assert (
        f"127.0.0.1:{port}: another program listens on this port; stop it, or choose another --port"
        in done.err
    )


# ---- shell completion --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_printed(shell: str) -> None:
    done = in_process("--show-completion", shell)
    assert (done.code, done.err) == (0, "")
    assert f"complete_{shell}" in done.out


def test_completion_for_an_unknown_shell_is_a_usage_error() -> None:
    done = in_process("--show-completion", "cmd")
    assert done.code == 2 and "'cmd' is not one of 'bash', 'zsh', 'fish'" in done.err


def test_completion_names_commands_and_options() -> None:
    bash = {"_CITADEL_COMPLETE": "complete_bash", "COMP_CWORD": "1"}
    commands = in_process(**bash, COMP_WORDS="citadel se").out.split()
    assert {"search", "serve"} <= set(commands)
    options = in_process(**bash | {"COMP_CWORD": "2"}, COMP_WORDS="citadel search --s").out.split()
    assert "--semantic" in options


def test_completion_is_installed(tmp_path: Path) -> None:
    done = in_process("--install-completion", "bash", HOME=str(tmp_path))
    assert done.code == 0 and "bash completion installed" in done.out
    assert "_CITADEL_COMPLETE" in (tmp_path / ".bash_completions" / "citadel.sh").read_text()
