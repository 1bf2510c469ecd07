"""`citadel doctor`: describe the installation on one screen, for bug reports."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from citadel.cli.support.options import Json
from citadel.cli.support.output import one_line, print_json

PACKAGE = "citadel-ir"
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")
_DEVELOPMENT = {
    "bench",
    "dev",
    "docs",
    "frameworks",
    "fuzz",
    "notebooks",
    "oracle",
    "peers",
    "test",
}  # extras that users do not install


def doctor(json: Json = False) -> None:
    """Print versions, instruction set, GPU, threads, models and missing packages, for bug reports."""
    facts = dict(report())
    if json:
        print_json(facts)
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {one_line(value)}")


def report() -> Iterator[tuple[str, str]]:
    """Names and values, in the order in which they are printed.

    >>> [name for name, _ in report()][:3]
    ['citadel', 'python', 'platform']
    """
    from citadel.cli.main import version_line
    from citadel.settings import available_threads

    yield "citadel", version_line().removeprefix("citadel ")
    yield "python", f"{platform.python_version()} {platform.python_implementation()}, {sys.executable}"
    yield "platform", platform.platform()
    yield "instruction sets", _instruction_sets()
    yield "threads", f"{available_threads()} of {os.cpu_count() or 1} cores"
    yield "huge pages", _huge_pages()
    yield "GPU", _gpu()
    yield "models", _models()
    yield "default model", _default_model()
    yield "model cache", _model_cache()
    yield "variables", _variables()
    yield "packages", _versions(_requirements().get("", []))
    for extra, names in sorted(_requirements().items()):
        if extra and extra not in _DEVELOPMENT:
            yield f"[{extra}]", _versions(names)


def _instruction_sets() -> str:
    from citadel._native import instruction_set, instruction_sets

    return ", ".join(f"{name} (in use)" if name == instruction_set() else name for name in instruction_sets())


def _huge_pages() -> str:
    """The kernel's choice for transparent huge pages, which model weights use."""
    try:
        choice = re.search(r"\[(\w+)\]", _HUGE_PAGES.read_text(encoding="ascii"))
    except (OSError, UnicodeDecodeError):
        return "not available"
    return choice[1] if choice else "unknown"


def _gpu() -> str:
    """Names of the GPUs according to the driver; torch is not imported, which would take seconds."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "none (nvidia-smi is not installed)"
    query = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvidia-smi failed ({type(error).__name__})"
    return "; ".join(done.stdout.splitlines()) or "none"


def _models() -> str:
    from citadel.encode.locate import installed_models
    from citadel.encode.session import ONNX_FILE

    models = [
        f"{folder.name} ({(folder / ONNX_FILE).stat().st_size / 1e6:.0f} MB, {folder})"
        for folder in installed_models()
    ]
    return "; ".join(models) or "missing: the package was installed without its model; only bm25 works"


def _default_model() -> str:
    """What encodes the text of a new index without --model."""
    from citadel.encode.locate import BM25, VARIABLE, find_model, text_model
    from citadel.errors import InputError

    reason = f" ({VARIABLE})" if os.environ.get(VARIABLE) else ""
    try:
        chosen = text_model(None)
        return f"{BM25 if chosen is None else find_model(chosen)}{reason}"
    except InputError as error:
        return f"missing{reason}: {error}"


def _model_cache() -> str:
    """The folder of models downloaded from the Hugging Face hub, which `citadel import` and `train` read."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    folder = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    return f"{folder} ({len(list(folder.glob('models--*')))} downloaded)"


def _variables() -> str:
    """CITADEL_ variables that are set; secrets are not printed."""
    names = sorted(name for name in os.environ if name.startswith("CITADEL_"))
    return ", ".join(n if "TOKEN" in n else f"{n}={os.environ[n]}" for n in names) or "none set"


def _requirements() -> dict[str, list[str]]:
    """Names of the required packages per extra; those of the core have the key ""."""
    requirements: dict[str, list[str]] = {}
    try:
        lines = metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:
        return requirements
    for line in lines:
        name, extra = _NAME.match(line), _EXTRA.search(line)
        if name is not None and name[0].lower() != PACKAGE:
            requirements.setdefault(extra[1] if extra else "", []).append(name[0])
    return requirements


def _versions(names: list[str]) -> str:
    """Versions of installed packages, then the missing ones.

    >>> _versions(["no-such-package"])
    'missing: no-such-package'
    """
    known, missing = [], []
    for name in dict.fromkeys(names):
        try:
            known.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    return "; ".join(filter(None, [", ".join(known), f"missing: {', '.join(missing)}" if missing else ""]))
