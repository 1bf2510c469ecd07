"""Hold the lock of an index until killed; exit with the error's code if it is taken."""

from __future__ import annotations

import sys

from citadel import Index
from citadel.errors import CitadelError


def main(folder: str) -> int:
    index = Index.open(folder)
    try:
        index.add([{"id": "held", "text": "never committed"}])
    except CitadelError as error:
        print(type(error).__name__)
        return error.exit_code
    print("holding", flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
