"""Pack measurements for version control, or unpack them.

    python scripts/pack.py build/measured benchmarks/measured             # pack
    python scripts/pack.py --unpack benchmarks/measured build/measured    # unpack; existing files are kept

Packs are deterministic and below 1 MB each. `citadel report` reads folders of files and of packs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from citadel.errors import CitadelError
from citadel.paper.packs import packs_in, unpack, write_packs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--unpack", action="store_true", help="unpack instead of packing")
    parser.add_argument("source", help="folder to read")
    parser.add_argument("target", help="folder to write")
    options = parser.parse_args()
    if options.unpack:
        unpack(options.source, options.target)
        return
    written = write_packs(options.source, options.target)
    for stale in set(packs_in(options.target)) - set(written):
        stale.unlink()
    for pack in written:
        print(f"{pack}: {pack.stat().st_size:,} bytes")


if __name__ == "__main__":
    try:
        main()
    except CitadelError as error:
        sys.exit(f"pack: {error}")
