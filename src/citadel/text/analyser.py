"""Text to terms: how BM25 sees documents and queries."""

from __future__ import annotations

import itertools
import re
import threading
import unicodedata
import zlib
from collections.abc import Callable, Iterator
from functools import cache, cached_property

from citadel.errors import UsageError
from citadel.text.probes import PROBES
from citadel.types import Tokens

VERSION = 1  # raise it when a change here gives other terms than before
MAX_TERM = 255  # bytes of UTF-8
ANALYSERS = ("english", "plain")
_CACHED_TERMS = 1 << 16
_LONG_TEXT = 1 << 17  # characters; a longer text is read in windows
_WINDOW = 1 << 14  # words of a long text that are held at a time
_CACHED_LENGTH = 32  # characters; longer words are rarely seen twice

STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be but by for if in into is it no not of on or such that the their then there these they"
        " this to was will with",
    )
)
# Inside a word and without meaning for search: soft hyphen, zero-width joiners, word joiner, byte order mark.
_IGNORED = "\u00ad\u200c\u200d\u2060\ufeff"
_IGNORED_LETTERS = re.compile(f"[{_IGNORED}]")  # on a long text ten times faster than str.translate
_APOSTROPHES = "'’＇"


class Analyser:
    """Cuts a text into words and makes a term of each; get one with `get_analyser`. Safe to share between threads.

    A word is a run of Unicode letters, digits, underscores and the marks on them, apostrophes inside it included;
    Chinese and Japanese are not cut further. Each word is brought to NFKC and case-folded, so that full-width and
    ligature forms, composed and decomposed accents, and H₂O and H2O meet; accents are kept, since they tell words apart
    in most languages and dropping them cannot be undone. The rest is the analyser's own: `english` drops the possessive
    's and 33 stop words and stems with Porter's algorithm, `plain` does nothing more. Terms are cut at 255 bytes.
    """

    def __init__(self, name: str, finish: Callable[[str], str]) -> None:
        self.name = name
        self._cache = _Terms(finish)
        self._term = self._cache.__getitem__

    def terms(self, text: str) -> list[str]:
        """The terms of a text in order.

        >>> get_analyser("english").terms("The dog's owners were RUNNING")
        ['dog', 'owner', 'were', 'run']
        """
        return list(filter(None, map(self._term, _words(text).findall(text))))

    def has_words(self, text: str) -> bool:
        """Whether a text has a word at all, stop words included.

        >>> get_analyser("english").has_words("the"), get_analyser("english").has_words(" ?! ")
        (True, False)
        """
        return _words(text).search(text) is not None

    def windows(self, text: str) -> Iterator[list[str]]:
        """The same terms in lists of bounded length, so that a long text is never held as words.

        >>> list(get_analyser("english").windows("The dog's owners"))
        [['dog', 'owner']]
        """
        if len(text) <= _LONG_TEXT:
            yield self.terms(text)
            return
        words = (match[0] for match in _words(text).finditer(text))
        while window := list(itertools.islice(words, _WINDOW)):
            yield list(filter(None, map(self._term, window)))

    def tokens(self, text: str) -> Tokens:
        """The same terms with the character offsets of their words in the text as given.

        >>> get_analyser("english").tokens("The dog's owners")
        Tokens(texts=('dog', 'owner'), offsets=((4, 9), (10, 16)))
        """
        pairs = [(self._term(match[0]), match.span()) for match in _words(text).finditer(text)]
        kept = [(term, span) for term, span in pairs if term]
        return Tokens(tuple(term for term, _ in kept), tuple(span for _, span in kept))

    @cached_property
    def fingerprint(self) -> str:
        """Name, version and a CRC of what becomes of the probe words.

        It changes with the behaviour of the stemmer or of Unicode, not with their version numbers.

        >>> get_analyser("plain").fingerprint.startswith("plain-1-")
        True
        """
        given = "\n".join(",".join(self.terms(probe)) for probe in PROBES)
        return f"{self.name}-{VERSION}-{zlib.crc32(given.encode()):08x}"


class _Terms(dict[str, str]):
    """From each word to its term ("" for a stop word), worked out at first sight.

    Reading and setting one entry of a dict is atomic; only `finish` needs the lock, for a stemmer has one buffer.
    """

    def __init__(self, finish: Callable[[str], str]) -> None:
        super().__init__()
        self._finish = finish
        self._lock = threading.Lock()

    def __missing__(self, word: str) -> str:
        with self._lock:
            term = cut(self._finish(cut(fold(word))))
            term = word if term == word else term  # one text in memory, not two
            if len(word) <= _CACHED_LENGTH:
                if len(self) >= _CACHED_TERMS:
                    self.clear()
                self[word] = term
        return term


@cache
def get_analyser(name: str) -> Analyser:
    """The analyser `english` or `plain`, one object each for the whole process.

    >>> get_analyser("plain").terms("It's E = mc²")
    ["it's", 'e', 'mc2']
    """
    if name == "english":
        return Analyser(name, _english())
    if name == "plain":
        return Analyser(name, str)
    raise UsageError(f"unknown analyser {name!r}: choose one of {', '.join(ANALYSERS)}")


def fold(word: str) -> str:
    """One form for all spellings of a word that differ in case, width or composition only.

    >>> fold("Ｃａｆé"), fold("STRASSE") == fold("Straße")
    ('café', True)
    """
    if word.isascii():
        return word.lower()
    kept = _IGNORED_LETTERS.sub("", word)
    folded = unicodedata.normalize("NFKC", kept).casefold()
    return unicodedata.normalize("NFKC", folded).replace("’", "'")


def cut(term: str) -> str:
    """The term, cut before the character that would pass 255 bytes.

    >>> len(cut("é" * 200).encode())
    254
    """
    if len(term) * 4 <= MAX_TERM:  # no character has more than 4 bytes
        return term
    return term.encode()[:MAX_TERM].decode(errors="ignore")


def _english() -> Callable[[str], str]:
    try:
        import Stemmer
    except ImportError:  # only where citadel was copied, not installed
        raise UsageError("the english analyser needs PyStemmer: run `pip install PyStemmer`, or choose plain") from None

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
    r"""Like \w+, with the marks that \w leaves out: without them every Indic or decomposed word falls to pieces."""
    points = [*range(0x300, 0x20000), *range(0xE0100, 0xE01F0)]  # all marks of Unicode are in these ranges
    marks = "".join(chr(point) for point in points if unicodedata.category(chr(point))[0] == "M")
    run = rf"\w+(?:(?![\x00-\xac])[{marks}{_IGNORED}]+\w*)*"  # the look-ahead spares most words the long set
    return re.compile(rf"{run}(?:[{_APOSTROPHES}]{run})*")
