"""Print drawn texts of boilerplate as JSONL, further texts for `citadel distill` (`data.extra`).

python scripts/boilerplate.py > runs/boilerplate.jsonl
"""

from __future__ import annotations

import json

import numpy as np

from citadel.train.stubs import draw_stub

DRAWN, SEED = 40_000, 11


def main() -> None:
    rng = np.random.default_rng(SEED)
    for text in sorted({draw_stub(rng) for _ in range(DRAWN)}):
        print(json.dumps({"text": text}))


if __name__ == "__main__":
    main()
