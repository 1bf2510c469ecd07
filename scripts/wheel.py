"""Build the wheel for this Python into dist/ and test it in an empty environment: `make wheel`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


def environment(folder: Path) -> Path:
    """Make an empty environment and return its Python."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        python = environment(work / "build")
        command = [str(python), "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(work / "dist"), str(ROOT)]
        subprocess.run(command, check=True)
        (wheel,) = (work / "dist").glob("*.whl")
        if "-abi3-" in wheel.name and (audit := shutil.which("abi3audit")):
            subprocess.run([audit, "--strict", str(wheel)], check=True)
        python = environment(work / "test")
        subprocess.run([str(python), "-m", "pip", "install", "-q", str(wheel)], check=True)
        subprocess.run([str(python), "-I", str(ROOT / "examples" / "quickstart.py")], cwd=work, check=True)
        subprocess.run([str(python), "-I", "-m", "citadel", "doctor"], cwd=work, check=True)
        (ROOT / "dist").mkdir(exist_ok=True)
        shutil.copy(wheel, ROOT / "dist")
        print(f"dist/{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    sys.exit(main())
