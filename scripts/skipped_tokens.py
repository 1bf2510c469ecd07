"""Count the tokens that an int8 model skips in documents, and write them into its config.json.

    .venv/bin/python scripts/skipped_tokens.py configs/tiny-en-2.toml [--model models/tiny-en]

`citadel distill` counts the same at its end, before weights are rounded. Passages, seed and share are
those of the config, so no evaluation's texts are read. config.json is part of the model's fingerprint:
fit calibration.json again afterwards (scripts/calibrate.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from citadel.encode.config import load_config
from citadel.encode.encoder import Encoder
from citadel.encode.tokenizer import Encoding
from citadel.train.readers import read_source
from citadel.train.students.config import load_distill_config
from citadel.train.students.skipped import LENGTH, hardly_routed, sampled


def main() -> None:
    """Count, print the tokens and write them."""
    parser = argparse.ArgumentParser(description="Count the tokens that a model skips in documents.")
    parser.add_argument("config", help="of `citadel distill`")
    parser.add_argument("--model", default="models/tiny-en")
    parser.add_argument("--share", type=float, help="default: the config's")
    arguments = parser.parse_args()
    config = load_distill_config(arguments.config)
    passages = read_source(config.data).passages.texts
    texts = [passages[row] for row in sampled(len(passages), config.seed).tolist()]
    encoder = Encoder(arguments.model)
    total, keyed = count(encoder, texts)
    share = config.student.skip if arguments.share is None else arguments.share
    skipped = hardly_routed(total, keyed, share)
    print(" ".join(map(encoder.tokenizer.token, skipped)))
    chosen = list(skipped)
    print(
        f"{len(skipped)} tokens: {total[chosen].sum() / total.sum():.1%} of {total.sum():,}, and "
        f"{keyed[chosen].sum() / keyed.sum():.2%} of the {keyed.sum():,} with a key"
    )
    replace(load_config(arguments.model), skipped_tokens=skipped).save(arguments.model)


def count(encoder: Encoder, texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens of the documents by id [V], and those with a key; all but [CLS] and [SEP] may have one."""
    given = [_inner(text) for text in encoder.tokenizer.documents(texts)]
    total, keyed = np.zeros((2, encoder.config.backbone.vocabulary), np.int64)
    for text, routed in zip(given, encoder.route(given, 1, encoder.tau), strict=True):
        assert routed.tokens is not None
        ids = text.ids[text.routed]
        np.add.at(total, ids, 1)
        np.add.at(keyed, ids[routed.tokens], 1)
    return total, keyed


def _inner(text: Encoding) -> Encoding:
    """A document cut to the sample's length, its tokens all routed."""
    ids = np.append(text.ids[: min(len(text), LENGTH) - 1], text.ids[-1])
    routed = np.ones(len(ids), np.bool_)
    routed[[0, -1]] = False
    return Encoding(ids, text.offsets[: len(ids)], routed)


if __name__ == "__main__":
    main()
