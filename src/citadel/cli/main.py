"""The command `citadel`: subcommands, error messages and exit codes."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from citadel.cli import (
    add,
    backup,
    bench,
    check,
    count,
    delete,
    demo,
    distill,
    doctor,
    export,
    facets,
    import_model,
    index,
    mcp,
    measure,
    merge,
    mine,
    optimize,
    plan,
    score,
    search,
    serve,
    shard,
    stats,
    train,
    update,
)
from citadel.cli import eval as evaluation
from citadel.cli import explain as explaining
from citadel.cli import list as listing
from citadel.cli import report as reporting
from citadel.cli.support.options import LogLevel, parse_log_level
from citadel.cli.support.output import one_line, say
from citadel.errors import CitadelError, UsageError

INTERRUPTED = 130  # 128 + SIGINT, as in shells
OUT_OF_RESOURCES = 6
BAD_INPUT = 4
USAGE = 2
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM}
# click.UsageError; some versions of typer bundle click, so it cannot be imported by name.
_CommandLineError: type = typer.BadParameter.__base__ or typer.BadParameter

app = typer.Typer(
    name="citadel",
    help="Multi-vector retrieval with dynamic lexical routing: build, change, check and search an index.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(index.index)
app.command()(add.add)
app.command()(delete.delete)
app.command()(update.update)
app.command()(merge.merge)
app.command()(optimize.optimize)
app.command()(shard.shard)
app.command()(plan.plan)
app.command()(check.check)
app.command()(backup.backup)
app.command()(backup.restore)
app.command()(stats.stats)
app.command("list")(listing.list_documents)
app.command()(count.count)
app.command()(facets.facets)
app.command()(search.search)
app.command()(explaining.explain)
app.command()(serve.serve)
app.command()(mcp.mcp)
app.command("eval")(evaluation.evaluate)
app.command()(measure.measure)
app.add_typer(bench.bench_app, name="bench")
app.command()(reporting.report)
app.command()(train.train)
app.command()(distill.distill)
app.command()(mine.mine)
app.command()(score.score)
app.command()(export.export)
app.command("import")(import_model.import_model)
app.command()(demo.demo)
app.command()(doctor.doctor)


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print version, format and instruction set.")
    ] = False,
    log_level: LogLevel = "warning",
) -> None:
    """Multi-vector retrieval with dynamic lexical routing: build, change, check and search an index."""
    logging.getLogger("citadel").setLevel(parse_log_level(log_level).upper())
    if os.environ.get("CITADEL_ISA"):
        _check_instruction_set()
    if version:
        print(version_line())
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(USAGE)


def _check_instruction_set() -> None:
    """Turn an unknown CITADEL_ISA into a usage error before the engine is first used."""
    from citadel._native import instruction_set

    try:
        instruction_set()
    except ValueError as error:
        raise UsageError(f"CITADEL_ISA: {error}; name one of these or unset it") from None


def version_line() -> str:
    """Return the version, the index format and the instruction set in use.

    >>> version_line().startswith("citadel ")
    True
    """
    from citadel import __version__
    from citadel._native import instruction_set
    from citadel.index.container import FORMAT

    return f"citadel {__version__} (format {FORMAT}, {instruction_set()})"


def main() -> None:
    """Entry point of the installed command."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # ids may not fit a terminal that is not UTF-8
    logging.basicConfig(format="citadel: %(message)s", level=logging.WARNING)
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    if arguments[:1] in (["--show-completion"], ["--install-completion"]) and len(arguments) > 1:
        os.environ["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"  # so that the shell can be named
    try:
        code = app(args=list(arguments), prog_name="citadel", standalone_mode=False)
        sys.stdout.flush()
    except BaseException as error:
        return report(error)
    return code if isinstance(code, int) else 0


def report(error: BaseException) -> int:
    """Print an error in one line and return its exit code."""
    if isinstance(error, SystemExit):
        return _exit_code(error)
    if isinstance(error, BrokenPipeError):
        _drop_output()  # stdout was closed
        return 1
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return INTERRUPTED
    if os.environ.get("CITADEL_DEBUG"):
        traceback.print_exception(error)
    message, code = explain(error)
    say(message)
    return code


def _exit_code(error: SystemExit) -> int:
    """Flush the output and return the exit code of a command that exited, such as shell completion."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
    return error.code if isinstance(error.code, int) else int(error.code is not None)


def explain(error: BaseException) -> tuple[str, int]:
    """Return the message and the exit code of an error.

    >>> explain(MemoryError())
    ('out of memory; what was committed before is intact; close other programs or give a smaller --memory', 6)
    """
    if isinstance(error, CitadelError):
        return str(error), error.exit_code
    if isinstance(error, _CommandLineError):
        return _usage_message(error), USAGE
    if isinstance(error, MemoryError):
        advice = "close other programs or give a smaller --memory"
        return f"out of memory; what was committed before is intact; {advice}", OUT_OF_RESOURCES
    if isinstance(error, OSError) and error.errno is not None:
        return _system_message(error)
    unexpected = one_line(f"{type(error).__name__}: {error}")
    return f"unexpected error, please report it with the output of CITADEL_DEBUG=1 ({unexpected})", 1


def _usage_message(error: BaseException) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "citadel"
    message = (
        str(getattr(error, "message", "") or error)
        if not hasattr(error, "format_message")
        else error.format_message()
    )
    return f"{message.rstrip('.')}; see `{command} --help`"


def _system_message(error: OSError) -> tuple[str, int]:
    where = f"{os.fspath(error.filename)!s}: " if error.filename is not None else ""
    reason = os.strerror(error.errno or 0).lower()
    if error.errno == errno.EIO:
        return (
            f"{where}the disk failed ({reason}); check the disk and its cables, then run it again",
            OUT_OF_RESOURCES,
        )
    if error.errno == errno.EROFS:
        return f"{where}{reason}; mount it for writing, or choose another folder", OUT_OF_RESOURCES
    if error.errno in _FULL:
        return (
            f"{where}{reason}; what was committed before is intact; make room and run it again",
            OUT_OF_RESOURCES,
        )
    return f"{where}{reason}; check the path and its permissions", BAD_INPUT


def _drop_output() -> None:
    """Discard buffered output, so that the interpreter's last flush is silent."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the rest of the process
