"""Special tokens, prompts and skip lists of a foreign tokenizer, as ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from citadel.encode.model_files import MAX_TOKENIZER, read_model_file
from citadel.encode.tokenizer import TOKENIZER_FILE
from citadel.encode.tokenizer_check import check_tokenizer
from citadel.errors import InputError

PROBES = ("heart", "Heart", "1", "(a) b", "über x")
MAX_PROMPT = 10_000  # letters
_MASKS = ("[MASK]", "<mask>")
_PADS = ("[PAD]", "<pad>")


class ForeignTokenizer:
    """A foreign tokenizer.json."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / TOKENIZER_FILE
        if not self.path.exists():
            raise InputError(
                "the model has no tokenizer.json: save its tokenizer with "
                "`AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)`",
                str(folder),
            )
        contents = read_model_file(str(self.path), MAX_TOKENIZER)
        check_tokenizer(contents, str(self.path))
        try:
            self._library = Tokenizer.from_buffer(contents)
        except Exception as error:  # the library raises nothing narrower
            raise InputError(
                f"cannot be read as a tokenizer ({error}): fetch the model again", str(self.path)
            ) from None
        self._library.no_truncation()
        self._library.no_padding()
        self.vocabulary: dict[str, int] = self._library.get_vocab(with_added_tokens=True)

    def special(self) -> dict[str, int]:
        """Ids of [CLS], [SEP], [PAD] and [MASK]."""
        text = self.ids("heart")
        whole = list(self._library.encode("heart").ids)
        if len(whole) != len(text) + 2 or whole[1:-1] != text:
            raise InputError(
                "the tokenizer does not put one token before and one after a text, as BERT does: "
                "such models are not supported",
                str(self.path),
            )
        pad, mask = (
            next((self.vocabulary[name] for name in names if name in self.vocabulary), whole[0])
            for names in (_PADS, _MASKS)
        )
        return {"cls_id": whole[0], "sep_id": whole[-1], "pad_id": pad, "mask_id": mask}

    def ids(self, text: str) -> list[int]:
        """Ids of a text without special tokens."""
        return list(self._library.encode(text, add_special_tokens=False).ids)

    def prompt(self, text: str) -> tuple[int, ...]:
        """Ids of a prompt; one that merges with the text behind it is an error."""
        if len(text) > MAX_PROMPT:
            raise InputError(f"a prompt of {len(text):,} letters is not supported", str(self.path))
        own = self.ids(text)
        for probe in PROBES:
            if self.ids(text + probe) != own + self.ids(probe):
                raise InputError(
                    f"the prompt {text[:60]!r} merges with the text behind it, which is not supported",
                    str(self.path),
                )
        return tuple(own)

    def marker(self, text: str) -> tuple[int, ...]:
        """Ids of a ColBERT marker such as "[Q] "; one that is no token is plain text."""
        for known in (text, *text.split(None, 1)[:1]):
            if known in self.vocabulary:
                return (self.vocabulary[known], *self.prompt(text[len(known) :].lstrip()))
        return self.prompt(text)

    def expansion(self, token: str | None) -> int:
        """Id of the token that pads queries, [MASK] by default."""
        for known in _MASKS if token is None else (token,):
            if known in self.vocabulary:
                return self.vocabulary[known]
        raise InputError(f"the tokenizer has no token {token or '[MASK]'!r} to pad queries", str(self.path))

    def known(self, words: list[str]) -> tuple[int, ...]:
        """Ids of the words that are tokens, in order."""
        return tuple(sorted({self.vocabulary[word] for word in words if word in self.vocabulary}))

    def require_lower_case(self) -> None:
        """Raise if the tokenizer keeps capital letters, which sentence-transformers would lower."""
        if self.ids("HEART") != self.ids("heart"):
            raise InputError(
                "do_lower_case with a tokenizer that keeps capital letters is not supported: "
                "add a Lowercase normalizer to it",
                str(self.path),
            )


def prompts(settings: dict[str, Any], where: str) -> tuple[str, str]:
    """The prompts of queries and of documents."""
    given = settings.get("prompts") or {}
    if not isinstance(given, dict) or not all(isinstance(text, str | None) for text in given.values()):
        raise InputError("the prompts are not strings: fetch the model again", where)
    default = given.get(settings.get("default_prompt_name") or "", "")
    query = given.get("query", default)
    document = next((given[name] for name in ("document", "passage", "corpus") if name in given), default)
    return query or "", document or ""
