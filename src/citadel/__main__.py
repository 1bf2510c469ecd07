"""`python -m citadel`: the command line, or where typer is absent the few verbs of training."""

from __future__ import annotations

import importlib.util
import sys


def start() -> None:
    """Run what the arguments say, and end with its exit code."""
    if importlib.util.find_spec("typer") is not None:
        from citadel.cli.main import main

        main()
    else:
        from citadel.cli.plain import main as plain_main

        sys.exit(plain_main())


if __name__ == "__main__":
    start()
