"""Special tokens, truncation, offsets and routed tokens."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citadel.encode.tokenizer import Encoding, Tokenizer
from citadel.errors import InputError
from tests.support.models import VOCABULARY, tiny_config, tiny_tokenizer


def tokenizer(folder: Path, **changes: Any) -> Tokenizer:
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return Tokenizer(folder, tiny_config(changes.pop("router", "dynamic"), **changes))


def tokens(text: Encoding) -> list[str]:
    return [VOCABULARY[id] for id in text.ids.tolist()]


def routed(text: Encoding) -> list[str]:
    return [token for token, has in zip(tokens(text), text.routed.tolist(), strict=True) if has]


def test_special_tokens_surround_a_text(tmp_path: Path) -> None:
    [text] = tokenizer(tmp_path).documents(["Newton gravity."])
    assert tokens(text) == ["[CLS]", "newton", "gravity", ".", "[SEP]"]
    assert text.offsets == ((0, 0), (0, 6), (7, 14), (14, 15), (0, 0))
    assert routed(text) == ["newton", "gravity", ".", "[SEP]"]
    assert not text.cut


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"route_separator": False}, ["newton", "gravity", "."]),
        ({"route_punctuation": False}, ["newton", "gravity", "[SEP]"]),
        ({"route_separator": False, "route_punctuation": False}, ["newton", "gravity"]),
    ],
)
def test_unrouted_tokens(changes: dict[str, Any], expected: list[str], tmp_path: Path) -> None:
    assert routed(tokenizer(tmp_path, **changes).documents(["Newton gravity."])[0]) == expected


def test_long_text_is_truncated_and_marked(tmp_path: Path) -> None:
    exact, longer = tokenizer(tmp_path, document_length=5).documents(["a the of", "a the of rome"])
    assert (tokens(exact), exact.cut) == (["[CLS]", "a", "the", "of", "[SEP]"], False)
    assert (tokens(longer), longer.cut) == (["[CLS]", "a", "the", "of", "[SEP]"], True)


@given(st.text(st.sampled_from("ane .é\u0301\u00a0文😀"), max_size=200), st.integers(3, 8))
def test_truncation_does_not_depend_on_the_rest_of_the_text(text: str, length: int) -> None:
    """Not on trailing blanks, a word that is cut off, or a combining accent after the cut."""
    with tempfile.TemporaryDirectory() as folder:
        made = tokenizer(Path(folder), document_length=length)
        [encoding] = made.documents([text])
        whole = made._library.encode(text, add_special_tokens=False)
    assert encoding.ids.tolist()[1:-1] == whole.ids[: length - 2]
    assert list(encoding.offsets[1:-1]) == whole.offsets[: length - 2]
    assert encoding.cut == (len(whole.ids) > length - 2)


def test_query_length(tmp_path: Path) -> None:
    [text] = tokenizer(tmp_path, query_length=4).queries(["a the of"])
    assert (tokens(text), text.cut) == (["[CLS]", "a", "the", "[SEP]"], True)


def test_colbert_queries_are_padded_with_routed_masks(tmp_path: Path) -> None:
    made = tokenizer(tmp_path, router="all_to_all", query_padding=6)
    [query], [document] = made.queries(["rome"]), made.documents(["rome"])
    assert tokens(query) == ["[CLS]", "rome", "[SEP]", "[MASK]", "[MASK]", "[MASK]"]
    assert routed(query) == tokens(query)[1:]
    assert tokens(document) == ["[CLS]", "rome", "[SEP]"]


def test_empty_text_has_only_special_tokens(tmp_path: Path) -> None:
    [text] = tokenizer(tmp_path).documents([""])
    assert tokens(text) == ["[CLS]", "[SEP]"]


def test_special_tokens_in_a_text_are_plain_text(tmp_path: Path) -> None:
    [text] = tokenizer(tmp_path).documents(["[SEP] [CLS]"])
    assert tokens(text)[1:-1].count("[SEP]") == tokens(text)[1:-1].count("[CLS]") == 0


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path: Path) -> None:
    made = tiny_tokenizer()
    made.enable_truncation(2)
    made.enable_padding(length=30)
    made.save(str(tmp_path / "tokenizer.json"))
    [text] = Tokenizer(tmp_path, tiny_config()).documents(["a the of"])
    assert tokens(text) == ["[CLS]", "a", "the", "of", "[SEP]"]


def test_tokenizer_of_another_model_is_an_error(tmp_path: Path) -> None:
    tiny_tokenizer().save(str(tmp_path / "tokenizer.json"))
    backbone = tiny_config().backbone
    for vocabulary in (len(VOCABULARY) - 1, len(VOCABULARY) + 64):
        other = tiny_config(backbone=type(backbone)(vocabulary, 32, 2, 4, 64, 40))
        with pytest.raises(InputError, match="the tokenizer has 200 tokens, the model"):
            Tokenizer(tmp_path, other)


def test_padded_embeddings_are_accepted(tmp_path: Path) -> None:
    tiny_tokenizer().save(str(tmp_path / "tokenizer.json"))
    backbone = tiny_config().backbone
    padded = tiny_config(backbone=type(backbone)(len(VOCABULARY) + 56, 32, 2, 4, 64, 40))
    assert len(Tokenizer(tmp_path, padded).documents(["a"])[0]) == 3


@pytest.mark.parametrize("contents", [None, b"", b"{}", b"\xff\x00"])
def test_missing_or_damaged_tokenizer_is_an_error(contents: bytes | None, tmp_path: Path) -> None:
    if contents is not None:
        (tmp_path / "tokenizer.json").write_bytes(contents)
    with pytest.raises(InputError, match="export"):
        Tokenizer(tmp_path, tiny_config())
