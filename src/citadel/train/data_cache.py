"""Training data cached on disk between runs with the same files, tokenizer and settings.

A second run hashes its files instead of parsing them, and reads one file of flat arrays.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citadel.progress import Meter, silent
from citadel.text.corpus import COMPRESSIONS
from citadel.train.config import expand
from citadel.train.config_tables import DataPart
from citadel.train.data import Data, Examples, HasData, make_data, sentence_ends
from citadel.train.data_files import checked
from citadel.train.mined import ScoredLists
from citadel.train.ragged import Ragged
from citadel.train.texts import TextStore
from citadel.train.token_cache import read_tables, tokenizer_settings, write_tables
from citadel.train.tokens import prepare, special_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_NAMED = ("passages", "pairs", "collection", "queries", "qrels", "triples", "negatives", "scores")
_IN_FOLDER = ("passages.jsonl", "pairs.jsonl", "collection.tsv", "queries.tsv", "qrels.tsv", "train.jsonl")
_IN_BEIR = ("corpus.jsonl", "queries.jsonl", "qrels/train.tsv")
_DECIDE = ("format", "query_length", "passage_length", "kinds", "sources", "margin", "held_out", "max_pairs")
_TABLES = ("passages", "queries", "known")
_OPTIONAL = ("negatives", "dropped")


def load_data(config: HasData, tokenizer: Tokenizer, meter: Meter = silent) -> Data:
    """Load the data of a config, from the cache if possible; else read, tokenise and cache it."""
    part = config.data
    if not part.cache:
        return make_data(config, tokenizer, meter)
    file = os.path.join(expand(part.cache), f"data-{_name(part, tokenizer)}.bin")
    if os.path.exists(file):
        return read_data(file, tokenizer)
    data = make_data(config, tokenizer, meter)
    write_data(data, file)
    return data


def _name(part: DataPart, tokenizer: Tokenizer) -> str:
    """Fingerprint of the file contents, the settings and the tokenizer."""
    fingerprint = hashlib.sha256(json.dumps([_setting(part, name) for name in _DECIDE]).encode())
    prepare(tokenizer, part.passage_length)
    fingerprint.update(tokenizer_settings(tokenizer))
    for file in _inputs(part):
        with open(file, "rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        fingerprint.update(f"{os.path.basename(file)} {digest}\n".encode())
    return fingerprint.hexdigest()[:32]


def _setting(part: DataPart, name: str) -> object:
    value = getattr(part, name)
    return sorted(value.items()) if isinstance(value, Mapping) else value


def _inputs(part: DataPart) -> Iterator[str]:
    """Yield every file that the readers may use, in a fixed order."""
    named = [(key, expand(getattr(part, key))) for key in _NAMED if getattr(part, key)]
    names = _IN_BEIR if part.format == "beir" else _IN_FOLDER
    in_folder = [
        os.path.join(expand(part.folder), name + end) for name in names for end in COMPRESSIONS if part.folder
    ]
    for key, file in [*named, *(("folder", file) for file in in_folder if os.path.isfile(file))]:
        yield checked(file, f"data.{key}")


def write_data(data: Data, file: str) -> None:
    """Write `data`, without the parts that the tokenizer determines."""
    tables = {name: getattr(data, name) for name in _TABLES}
    tables |= {name: table for name in _OPTIONAL if (table := getattr(data, name)) is not None}
    if data.teacher is not None:
        tables |= {"teacher.passages": data.teacher.passages, "teacher.scores": data.teacher.scores}
    ids, ends = data.ids.flat()
    tables |= {"ids": Ragged(ids, ends), "twin": _row(data.twin)}
    parts = {"examples": data.examples, "held_out": data.held_out}
    parts |= {f"unseen.{index}": some for index, some in enumerate(data.unseen.values())}
    for name, some in parts.items():
        tables |= {f"{name}.{field.name}": _row(getattr(some, field.name)) for field in fields(some)}
    write_tables(tables, file, {"unseen": list(data.unseen)})


def _row(values: NDArray[Any]) -> Ragged:
    return Ragged(values, np.array([0, len(values)]))


def read_data(file: str, tokenizer: Tokenizer) -> Data:
    """Read data written by `write_data`."""
    tables, notes = read_tables(file)
    scored = "teacher.passages" in tables
    return Data(
        passages=tables["passages"],
        queries=tables["queries"],
        ids=TextStore.joined(tables["ids"]),
        examples=_examples(tables, "examples"),
        held_out=_examples(tables, "held_out"),
        unseen={name: _examples(tables, f"unseen.{index}") for index, name in enumerate(notes["unseen"])},
        known=tables["known"],
        twin=tables["twin"][0],
        special=special_tokens(tokenizer),
        sentence_ends=sentence_ends(tokenizer),
        negatives=tables.get("negatives"),
        dropped=tables.get("dropped"),
        teacher=ScoredLists(tables["teacher.passages"], tables["teacher.scores"]) if scored else None,
    )


def _examples(tables: Mapping[str, Ragged], name: str) -> Examples:
    return Examples(*(tables[f"{name}.{field.name}"][0] for field in fields(Examples)))
