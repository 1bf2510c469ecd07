"""Text analysis: documents and queries to BM25 terms."""

from __future__ import annotations

import itertools
import re
import threading
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property

from citadel.errors import UsageError
from citadel.text import languages
from citadel.text.languages import LANGUAGES
from citadel.text.probes import PROBES
from citadel.text.segmentation import Range, Segmentation, segmentation, without_overlaps
from citadel.types import Tokens

VERSIONS = {"plain": 2}  # 1 for the others; increment when a change alters the terms
MAX_TERM = 255  # bytes of UTF-8
ANALYSERS = ("english", "plain", "cjk", *LANGUAGES)
_CACHED_TERMS = 1 << 16
_LONG_TEXT = 1 << 17  # characters; longer texts are read in windows
_WINDOW = 1 << 14  # words per window of a long text
_CACHED_LENGTH = 32  # characters; longer words rarely repeat

STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be but by for if in into is it no not of on or such that the their then there "
        "these they this to was will with",
    )
)
# Ignored inside a word: soft hyphen, zero-width joiners, word joiner, byte order mark.
_IGNORED = "\u00ad\u200c\u200d\u2060\ufeff"
_IGNORED_LETTERS = re.compile(f"[{_IGNORED}]")  # ten times faster than str.translate on long texts
_APOSTROPHES = "'’＇"


class Analyser:
    """Split a text into words and normalise each to a term; get one with `get_analyser`. Thread-safe.

    A word is a run of Unicode letters, digits, underscores and combining marks, with apostrophes inside it.
    Words are normalised to NFKC and case-folded, so that full-width forms, ligatures, composed and decomposed
    accents, and H₂O and H2O match. Accents are kept, because they distinguish words in most languages.
    `plain` and `cjk` also split runs of scripts without spaces between words (see `text/segmentation.py`).
    `english` drops the possessive 's and 33 stop words and stems with Porter's algorithm. The name of another
    language stems with its Snowball stemmer and drops no words. Terms are cut at 255 bytes.
    """

    def __init__(
        self,
        name: str,
        finish: Callable[[str], str],
        prepare: Callable[[str], str] = str,
        segments: Segmentation | None = None,
        version: int = 1,
    ) -> None:
        """`prepare` gets words as they are, `finish` folded ones; `segments` splits them."""
        self.name, self.version = name, version
        self._segments = segments
        self._cache = _Terms(finish, prepare)
        self._term = self._cache.__getitem__

    def terms(self, text: str) -> list[str]:
        """The terms of a text in order.

        >>> get_analyser("english").terms("The dog's owners were RUNNING")
        ['dog', 'owner', 'were', 'run']
        """
        return list(filter(None, map(self._term, self._found(text))))

    def _found(self, text: str) -> Iterable[str]:
        """The words of a text."""
        if self._is_spaced(text):
            return _words(text).findall(text)
        return (text[start:end] for start, end in self._ranges(text))

    def _is_spaced(self, text: str) -> bool:
        """Whether words need no further segmentation."""
        return self._segments is None or text.isascii() or not self._segments.applies(text)

    def _ranges(self, text: str) -> Iterator[Range]:
        """Where the words of a text are; those in pairs of characters overlap."""
        found = (match.span() for match in _words(text).finditer(text))
        if self._is_spaced(text) or self._segments is None:
            return found
        split = self._segments.split
        return itertools.chain.from_iterable(split(text, start, end) for start, end in found)

    def has_words(self, text: str) -> bool:
        """Whether a text has at least one word, stop words included.

        >>> get_analyser("english").has_words("the"), get_analyser("english").has_words(" ?! ")
        (True, False)
        """
        return _words(text).search(text) is not None

    def windows(self, text: str) -> Iterator[list[str]]:
        """The terms of a text in lists of bounded length, which bounds the memory for long texts.

        >>> list(get_analyser("english").windows("The dog's owners"))
        [['dog', 'owner']]
        """
        if len(text) <= _LONG_TEXT:
            yield self.terms(text)
            return
        words = (text[start:end] for start, end in self._ranges(text))
        while window := list(itertools.islice(words, _WINDOW)):
            yield list(filter(None, map(self._term, window)))

    def tokens(self, text: str) -> Tokens:
        """The terms of a text with the character offsets of their words, which do not overlap.

        >>> get_analyser("english").tokens("The dog's owners")
        Tokens(texts=('dog', 'owner'), offsets=((4, 9), (10, 16)))
        """
        ranges = list(self._ranges(text))
        pairs = zip(ranges, without_overlaps(iter(ranges)), strict=True)
        terms = [(self._term(text[start:end]), span) for (start, end), span in pairs]
        kept = [(term, span) for term, span in terms if term]
        return Tokens(tuple(term for term, _ in kept), tuple(span for _, span in kept))

    @cached_property
    def fingerprint(self) -> str:
        """Name, version and a CRC of the terms of the probe words.

        It changes with the behaviour of the stemmer or of Unicode, not with their version numbers.

        >>> get_analyser("plain").fingerprint.startswith("plain-2-")
        True
        """
        probes = [*PROBES, *languages.PROBES.get(self.name, "").split()]
        terms = "\n".join(",".join(self.terms(probe)) for probe in probes)
        return f"{self.name}-{self.version}-{zlib.crc32(terms.encode()):08x}"


class _Terms(dict[str, str]):
    """Cache of words and their terms ("" for a stop word).

    Reading and setting one entry of a dict is atomic; only `finish` needs the lock, because a stemmer has a
    single buffer.
    """

    def __init__(self, finish: Callable[[str], str], prepare: Callable[[str], str] = str) -> None:
        super().__init__()
        self._finish, self._prepare = finish, prepare
        self._lock = threading.Lock()

    def __missing__(self, word: str) -> str:
        with self._lock:
            term = cut(self._finish(cut(fold(self._prepare(word)))))
            term = word if term == word else term  # keep one string instead of two equal ones
            if len(word) <= _CACHED_LENGTH:
                if len(self) >= _CACHED_TERMS:
                    self.clear()
                self[word] = term
        return term


def get_analyser(name: str, fingerprint: str | None = None) -> Analyser:
    """The analyser of a name, of the version in a fingerprint; one instance per process.

    >>> get_analyser("plain").terms("It's E = mc²")
    ["it's", 'e', 'mc2']
    >>> get_analyser("plain", "plain-1-9dc99d36").terms("東京"), get_analyser("plain").terms("東京")
    (['東京'], ['東', '京'])
    """
    newest = VERSIONS.get(name, 1)
    given = re.match(rf"{re.escape(name)}-([0-9]{{1,4}})-", fingerprint or "")
    return _analyser(name, min(int(given[1]), newest) if given else newest)


@cache
def _analyser(name: str, version: int) -> Analyser:
    if name == "english":
        return Analyser(name, _english())
    if name in ("plain", "cjk"):
        is_first = name == "plain" and version < VERSIONS[name]
        return Analyser(name, str, segments=None if is_first else segmentation(name), version=version)
    if name in LANGUAGES:
        prepare = languages.turkish_case if name == "turkish" else str
        return Analyser(name, languages.stemmer(name), prepare, version=version)
    raise UsageError(f"unknown analyser {name!r}: choose one of {', '.join(ANALYSERS)}")


def fold(word: str) -> str:
    """Normalise case, width and composition.

    >>> fold("Ｃａｆé"), fold("STRASSE") == fold("Straße")
    ('café', True)
    """
    if word.isascii():
        return word.lower()
    kept = _IGNORED_LETTERS.sub("", word)
    folded = unicodedata.normalize("NFKC", kept).casefold()
    return unicodedata.normalize("NFKC", folded).replace("’", "'")


def cut(term: str) -> str:
    """Truncate a term to at most 255 bytes of whole characters.

    >>> len(cut("é" * 200).encode())
    254
    """
    if len(term) * 4 <= MAX_TERM:  # no character has more than 4 bytes
        return term
    return term.encode()[:MAX_TERM].decode(errors="ignore")


def _english() -> Callable[[str], str]:
    try:
        import Stemmer
    except ImportError:  # citadel was copied, not installed
        raise UsageError(
            "the english analyser needs PyStemmer: run `pip install PyStemmer`, or choose plain"
        ) from None

    stem: Callable[[str], str] = Stemmer.Stemmer("porter", 0).stemWord

    def finish(word: str) -> str:
        word = word.removesuffix("'s")
        return "" if word in STOP_WORDS else stem(word)

    return finish


_ASCII_WORDS = re.compile(r"\w+(?:'\w+)*", re.ASCII)


def _words(text: str) -> re.Pattern[str]:
    return _ASCII_WORDS if text.isascii() else _unicode_words()


@cache
def _unicode_words() -> re.Pattern[str]:
    r"""Pattern like \w+ that includes combining marks, which Indic and decomposed words need."""
    points = [*range(0x300, 0x20000), *range(0xE0100, 0xE01F0)]  # contain all marks of Unicode
    marks = "".join(chr(point) for point in points if unicodedata.category(chr(point))[0] == "M")
    run = (
        rf"\w+(?:(?![\x00-\xac])[{marks}{_IGNORED}]+\w*)*"  # the look-ahead skips the long set for most words
    )
    return re.compile(rf"{run}(?:[{_APOSTROPHES}]{run})*")
