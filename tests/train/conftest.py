"""Fixtures: five passages, four pairs and a tiny random backbone, small enough to check by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from citadel.train.config import TrainConfig, parse_train_config

TEXTS = {
    "d1": "The heart pumps blood. It beats all day and all night.",
    "d2": "A virus is not alive. It needs a host cell to grow.",
    "d3": "Light bends in a lens. The angle depends on the glass.",
    "d4": "Copper conducts heat and current. Wood does neither of both.",
    "d5": "The heart pumps blood. It beats all day and all night.",  # d1 again
}
PAIRS = [
    ("what pumps blood", "d1", "question"),
    ("is a virus alive", "d2", "question"),
    ("lens", "d3", "term"),
    ("copper", "d4", "term"),
]
ALL_TEXTS = [*TEXTS.values(), *(query for query, _, _ in PAIRS)]
WORDS = sorted({word for text in ALL_TEXTS for word in re.findall(r"\w{2,}", text.lower())})


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, Any], str]:
    """Write a text, or rows as JSONL, to a file and return its path."""

    def writer(name: str, content: Any) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else "".join(json.dumps(row) + "\n" for row in content)
        path.write_text(text, encoding="utf-8")
        return str(path)

    return writer


@pytest.fixture
def folder(write: Callable[[str, Any], str], tmp_path: Path) -> Path:
    """Folder with the five passages and four pairs."""
    write("passages.jsonl", [{"id": id, "source": f"s-{id}", "text": text} for id, text in TEXTS.items()])
    write("pairs.jsonl", [{"query": query, "positive": id, "kind": kind} for query, id, kind in PAIRS])
    return tmp_path


def write_fixed_backbone(folder: Path, pieces: list[str]) -> Path:
    """Write a random BERT that knows the letters of the texts and these words and pieces of words.

    Its vocabulary is fixed: a trained one differs from run to run, and with it all scores.
    """
    import numpy as np
    from tokenizers.models import WordPiece

    from scripts.smoke_data import SPECIAL, train_tokenizer, write_backbone

    letters = sorted(set("".join(ALL_TEXTS).lower()) - {" "})
    vocabulary = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters), *pieces]
    tokenizer = train_tokenizer(ALL_TEXTS)
    tokenizer.model = WordPiece({token: id for id, token in enumerate(vocabulary)}, unk_token="[UNK]")
    tokenizer.save(str(folder / "tokenizer.json"))
    write_backbone(folder, len(vocabulary), np.random.default_rng(0))
    return folder


@pytest.fixture(scope="session")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random BERT that knows the words of the five passages."""
    pytest.importorskip("safetensors", reason="safetensors is not installed: `pip install citadel-ir[train]`")
    endings = sorted({f"##{word[-2:]}" for word in WORDS if len(word) > 2})
    return write_fixed_backbone(tmp_path_factory.mktemp("backbone"), [*WORDS, *endings])


@pytest.fixture
def config(folder: Path, backbone: Path) -> Callable[..., TrainConfig]:
    """Make a config over the five passages; arguments are tables of changes."""

    def maker(**changes: Mapping[str, Any]) -> TrainConfig:
        tomli_w = pytest.importorskip(
            "tomli_w", reason="tomli-w is not installed: `pip install citadel-ir[train]`"
        )
        tables: dict[str, Any] = {
            "name": "tiny",
            "seed": 7,
            "model": {"backbone": str(backbone), "router": "dynamic"},
            "data": {
                "folder": str(folder),
                "group": 3,
                "query_length": 12,
                "passage_length": 24,
                "held_out": False,
            },
            "optimizer": {"steps": 4, "batch": 2},
        }
        for name, change in changes.items():
            tables[name] = {**tables.get(name, {}), **change}
        return parse_train_config(tomli_w.dumps(tables))

    return maker
