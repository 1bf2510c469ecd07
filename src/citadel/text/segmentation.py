"""Word boundaries in scripts that are written without spaces, after Unicode Standard Annex #29.

| script | `plain` | `cjk` |
| --- | --- | --- |
| Han, Hiragana | one character | pairs of characters |
| Katakana | the whole run | pairs of characters |
| Hangul | words, as spaces separate them | pairs of syllables |
| Thai, Lao, Khmer, Myanmar, Tai | pairs of characters | pairs of characters |

A character is taken with its combining marks. The annex leaves the last row to dictionaries; pairs need none.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from functools import cache

_HAN = "\u2e80-\u2fdf\u3005\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_HAN += "\U00020000-\U0003ffff"
_HIRAGANA = "\u3041-\u309f\U0001b000-\U0001b16f"
_KATAKANA = "\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_HANGUL = "\u1100-\u11ff\u3130-\u318f\ua960-\ua97c\uac00-\ud7fb\uffa0-\uffdc"
_THAI_TO_TAI = (
    "\u0e01-\u0e4e\u0e81-\u0ece\u0edc-\u0edf\u1000-\u103f\u1050-\u108f\u109a-\u109f\u1780-\u17d3\u17d7"
    "\u1950-\u19cf\u1a20-\u1a7c\ua9e0-\ua9ef\ua9fa-\ua9fe\uaa60-\uaa7f\uaa80-\uaadf"
)
_MARKS = (
    "\u0300-\u036f\u3099\u309a\uff9e\uff9f\u200c\u200d\ufe00-\ufe0f\U000e0100-\U000e01ef"
    "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece"
    "\u102b-\u103e\u1056-\u1059\u105e-\u1060\u1062-\u1064\u1067-\u106d\u1071-\u1074\u1082-\u108d\u108f"
    "\u109a-\u109d\u17b4-\u17d3\u19b0-\u19c0\u19c8\u19c9\u1a55-\u1a7c\uaa7b-\uaa7d\uaab0-\uaac1"
)
_SYLLABLE = r"[\u1100-\u115f\ua960-\ua97c][\u1160-\u11a7\ud7b0-\ud7c6][\u11a8-\u11ff\ud7cb-\ud7fb]?"
_ALL = _HAN + _HIRAGANA + _KATAKANA + _THAI_TO_TAI
Range = tuple[int, int]


class Segmentation:
    """Splits words that hold characters of such scripts; get one with `segmentation`.

    >>> text = "東京タワーと日本"
    >>> [text[start:end] for start, end in segmentation("plain").split(text, 0, len(text))]
    ['東', '京', 'タワー', 'と', '日', '本']
    >>> [text[start:end] for start, end in segmentation("cjk").split(text, 4, 8)]
    ['ーと', 'と日', '日本']
    """

    def __init__(self, singles: str, runs: str, pairs: str) -> None:
        """`singles` are words of one character each, `runs` words of their own, `pairs` split into pairs."""
        self._any = re.compile(f"[{singles}{runs}{pairs}]")
        syllable = f"{_SYLLABLE}|" if _HANGUL in pairs else ""
        one = rf"(?:{syllable}[{pairs}])[{_MARKS}]*"
        parts = [rf"(?P<pairs>(?:{one})+)"]
        parts += [rf"[{singles}][{_MARKS}]*"] if singles else []
        parts += [rf"[{runs}][{runs}{_MARKS}]*"] if runs else []
        rest = rf"[^{singles}{runs}{pairs}]"
        self._part = re.compile("|".join([*parts, rf"{rest}+(?:[{_MARKS}]+{rest}*)*", "."]))
        self._one = re.compile(one)

    def applies(self, text: str) -> bool:
        """Whether a text holds a character of these scripts."""
        return self._any.search(text) is not None

    def split(self, text: str, start: int, end: int) -> Iterator[Range]:
        """The parts of a word, which is characters start … end − 1 of a text; pairs overlap."""
        for part in self._part.finditer(text, start, end):
            if part.lastgroup != "pairs":
                yield part.span()
                continue
            ones = self._one.finditer(text, *part.span())
            first = previous = next(ones).span()
            for one in ones:
                yield previous[0], one.end()
                previous = one.span()
            if previous == first:
                yield first


def without_overlaps(ranges: Iterator[Range]) -> Iterator[Range]:
    """Ranges of which each ends where the next begins, for highlighting.

    >>> list(without_overlaps(iter([(0, 2), (1, 3), (5, 6)])))
    [(0, 1), (1, 3), (5, 6)]
    """
    following = itertools.pairwise(itertools.chain(ranges, [(-1, -1)]))
    for (start, end), (after, _) in following:
        yield start, min(end, after) if after >= 0 else end


@cache
def segmentation(name: str) -> Segmentation:
    """The segmentation of the analyser `plain` or `cjk`.

    >>> segmentation("plain").applies("Köln"), segmentation("plain").applies("ไทย")
    (False, True)
    """
    if name == "cjk":
        return Segmentation("", "", _ALL + _HANGUL)
    return Segmentation(_HAN + _HIRAGANA, _KATAKANA, _THAI_TO_TAI)
