"""The compiled normalizer of SentencePiece is read if it is sound, and refused if it could harm."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, normalizers

from citadel.encode.charsmap import charsmap_problem
from citadel.encode.tokenizer_check import check_tokenizer
from citadel.errors import InputError
from tests.support.charsmap import BLOCK, LEAF, VALUE, charsmap, encoded, units_of

RULES = {"ﬁ": "fi", "Ａ": "A", "①": "1", "\t": " ", "ß": "ss", "½": "1⁄2", "\u200b": ""}


def test_sound_map_is_accepted_and_does_what_it_says() -> None:
    assert charsmap_problem(charsmap(RULES)) == ""
    normalizer = normalizers.Precompiled(base64.b64decode(charsmap(RULES)))
    assert normalizer.normalize_str("ﬁne Ａ①\tgroß ½") == "fine A1 gross 1⁄2"


def changed(at: int, value: int) -> str:
    units, pool = units_of(RULES)
    units[at] = value
    return encoded(units, pool)


def node(prefix: bytes) -> int:
    """Index of the unit of a prefix."""
    units, _ = units_of(RULES)
    base, at = units[0] >> 10, 0
    for byte in prefix:
        at = base ^ byte
        base = at ^ units[at] >> 10
    return at


def looping() -> str:
    """A node that is its own child."""
    units, pool = units_of({"aa": "b"})
    at = BLOCK ^ ord("a")
    units[at] = (at ^ BLOCK) << 10 | ord("a")
    return encoded(units, pool)


FIRST = node("ﬁ".encode()[:1])
TAB = node(b"\t")
HOSTILE: dict[str, Any] = {
    "nothing": "",
    "no base64": "%%%%",
    "another type": 7,
    "a list": ["a"],
    "only a size": base64.b64encode(b"\xff\xff\xff\xff").decode(),
    "a size beyond the end": base64.b64encode(b"\xff\xff\xff\x7f" + bytes(4096)).decode(),
    "a size that is no multiple of 4": base64.b64encode(b"\x01\x04\0\0" + bytes(4096)).decode(),
    "a trie of one unit": encoded([0], b""),
    "a pool that is not UTF-8": encoded(units_of(RULES)[0], b"\xff\xfe\0"),
    "a root beyond the end": changed(0, (1 << 20) << 10),
    "a child beyond the end": changed(FIRST, ((1 << 20) << 10) | "ﬁ".encode()[0]),
    "a leaf beyond the end": changed(TAB, ((1 << 20) << 10) | LEAF | 9),
    "a value beyond the pool": changed((TAB ^ units_of(RULES)[0][TAB] >> 10), VALUE | 1 << 20),
    "a value within a letter": changed(
        (TAB ^ units_of(RULES)[0][TAB] >> 10), VALUE | units_of(RULES)[1].index("⁄".encode()) + 1
    ),
    "a cycle": looping(),
    "a deep key": charsmap({"a" * 70: "b"}),
    "a long replacement": charsmap({"a": "b" * 100}),
    "many letters": charsmap({"a": "b" * 19}),
    "a pool without an end": encoded(units_of({"a": "b"})[0], b"b" * 1000),
    "5 MB": base64.b64encode(bytes(9 << 20)).decode(),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_map_is_refused(case: str) -> None:
    assert "its compiled normalizer" in charsmap_problem(HOSTILE[case])
    tokenizer = {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": HOSTILE[case]},
        "model": {"type": "BPE"},
    }
    with pytest.raises(InputError, match="compiled normalizer"):
        check_tokenizer(json.dumps(tokenizer).encode(), "tokenizer.json")


def test_random_damage_never_makes_the_library_panic() -> None:
    """What passes the check is used on texts; a panic would not be an Exception."""
    random = np.random.default_rng(0)
    whole = bytearray(base64.b64decode(charsmap(RULES)))
    accepted = 0
    for _ in range(400):
        contents = whole.copy()
        for _ in range(int(random.integers(1, 4))):
            contents[int(random.integers(4, len(contents)))] ^= 1 << int(random.integers(0, 8))
        if not charsmap_problem(base64.b64encode(contents).decode()):
            accepted += 1
            normalizer = normalizers.Precompiled(bytes(contents))
            for text in ("ﬁne Ａ①\tgroß ½ \u200b", "".join(map(chr, range(1, 700)))):
                normalizer.normalize_str(text)
    assert accepted > 50


@pytest.mark.parametrize(
    ("pattern", "content", "is_known"),
    [
        (" {2,}", " ", True),
        (" {2,}", "▁", True),
        (" {2,}", "  " * 50, False),
        (" {3,}", " ", False),
        ("( +)+$", " ", False),
    ],
)
def test_only_the_known_expression_is_accepted(pattern: str, content: str, is_known: bool) -> None:
    item = {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}
    model = {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 0}
    contents = json.dumps({"normalizer": item, "model": model}).encode()
    if is_known:
        check_tokenizer(contents, "tokenizer.json")
        assert (
            Tokenizer.from_buffer(contents).normalizer.normalize_str("a   b" + " " * 20)
            == f"a{content}b{content}"
        )
    else:
        with pytest.raises(InputError, match="not plain text"):
            check_tokenizer(contents, "tokenizer.json")
    split = {"type": "Split", "pattern": {"Regex": " {2,}"}, "behavior": "Removed", "invert": False}
    with pytest.raises(InputError, match="not plain text"):
        check_tokenizer(json.dumps({"pre_tokenizer": split, "model": model}).encode(), "tokenizer.json")
