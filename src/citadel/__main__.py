"""`python -m citadel`: the command line."""

from __future__ import annotations

import importlib.util
import sys


def start() -> None:
    """Run the command line, or print what to install if typer is missing."""
    if importlib.util.find_spec("typer") is None:
        print("citadel: the command line needs typer: run `pip install typer`", file=sys.stderr)
        sys.exit(2)
    from citadel.cli.main import main

    main()


if __name__ == "__main__":
    start()
