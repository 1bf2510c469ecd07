"""Terms and offsets of a text, thread safety and fingerprints of analysers."""

from __future__ import annotations

import re
import sys
import threading
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citadel.errors import UsageError
from citadel.text import analyser as module
from citadel.text.analyser import ANALYSERS, STOP_WORDS, Analyser, cut, fold, get_analyser
from citadel.text.probes import PROBES

ENGLISH, PLAIN = get_analyser("english"), get_analyser("plain")
TEXT = st.text(st.characters() | st.sampled_from("aEß'’ \u0301\u00ad\u200dिｶﾞİΣ₂"))


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The Dogs' owner's dogs", ["dog", "owner", "dog"]),
        ("rock’s ROCKS rocking", ["rock", "rock", "rock"]),
        ("to be or not to be", []),
        ("p53-dependent, COVID-19; e.g. snake_case", ["p53", "depend", "covid", "19", "e", "g", "snake_cas"]),
        ("don't o'clock", ["don't", "o'clock"]),
        ("", []),
        ("?! … — 🦊", []),
    ],
)
def test_english(text: str, terms: list[str]) -> None:
    assert ENGLISH.terms(text) == terms


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The Dogs' owner's", ["the", "dogs", "owner's"]),
        ("it’s it's it＇s", ["it's", "it's", "it's"]),
        ("ＦＵＬＬ ﬁne H₂O", ["full", "fine", "h2o"]),
        ("café cafe\u0301 CAFÉ cafe", ["café", "café", "café", "cafe"]),
        ("Straße STRASSE", ["strasse", "strasse"]),
        ("ΟΔΟΣ οδος οδοσ", ["οδοσ", "οδοσ", "οδοσ"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("co\u00adoperate می\u200cخواهم", ["cooperate", "میخواهم"]),
        ("ｶﾞ", ["ガ"]),
        ("a\0b", ["a", "b"]),
        ("a\ud800b", ["a", "b"]),
        ("\u0301\u00ad", []),
    ],
)
def test_plain(text: str, terms: list[str]) -> None:
    assert PLAIN.terms(text) == terms


def test_all_33_stop_words_are_dropped() -> None:
    assert len(STOP_WORDS) == 33
    assert ENGLISH.terms(" ".join(sorted(STOP_WORDS))) == []


def test_offsets_refer_to_the_original_text() -> None:
    text = "Ａ cafe\u0301’s ﬁne İstanbul"
    tokens = PLAIN.tokens(text)
    assert [text[start:end] for start, end in tokens.offsets] == ["Ａ", "cafe\u0301’s", "ﬁne", "İstanbul"]
    assert tokens.texts == ("a", "café's", "fine", "i̇stanbul")


@pytest.mark.parametrize("name", ANALYSERS)
@given(text=TEXT)
def test_tokens_are_ordered_and_do_not_overlap(name: str, text: str) -> None:
    tokens = get_analyser(name).tokens(text)
    assert list(tokens.texts) == get_analyser(name).terms(text)
    ends = [0, *(end for _, end in tokens.offsets)]
    assert all(
        before <= start < end <= len(text) for before, (start, end) in zip(ends, tokens.offsets, strict=False)
    )
    assert all(0 < len(term.encode()) <= 255 for term in tokens.texts)


@given(text=TEXT)
def test_composed_and_decomposed_text_have_the_same_terms(text: str) -> None:
    assert PLAIN.terms(unicodedata.normalize("NFC", text)) == PLAIN.terms(unicodedata.normalize("NFD", text))


@given(word=TEXT)
def test_fold_is_idempotent(word: str) -> None:
    assert fold(fold(word)) == fold(word)


def test_ascii_and_unicode_patterns_agree_on_ascii() -> None:
    text = "".join(map(chr, range(128))) + " don't 'tis x'' y'z's _a_"
    assert module._ASCII_WORDS.findall(text) == module._unicode_words().findall(text)


def test_all_unicode_marks_are_in_the_scanned_ranges() -> None:
    outside = [*range(0x300), *range(0x20000, 0xE0100), *range(0xE01F0, 0x110000)]
    assert not any(unicodedata.category(chr(point)).startswith("M") for point in outside)


def test_marks_are_not_word_characters() -> None:
    """Otherwise matching would not take linear time."""
    word = re.compile(r"\w")
    assert not any(
        word.match(chr(point))
        for point in range(0x110000)
        if unicodedata.category(chr(point)).startswith("M")
    )


def test_long_terms_are_cut_between_characters() -> None:
    assert cut("é" * 127 + "x") == "é" * 127 + "x"
    assert cut("é" * 128) == "é" * 127
    assert PLAIN.terms("Ａ" + "ह" * 90) == ["a" + "ह" * 84]
    assert len(ENGLISH.terms("x" * 1_000_000)[0]) == 255


def test_cache_is_bounded_and_excludes_long_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CACHED_TERMS", 10)
    analyser = Analyser("tiny", str)
    assert analyser.terms(" ".join(f"w{i}" for i in range(25))) == [f"w{i}" for i in range(25)]
    assert len(analyser._cache) <= 10
    assert "y" * 100 not in analyser._cache
    assert analyser.terms("y" * 100) == ["y" * 100]
    assert "y" * 100 not in analyser._cache


def test_finish_is_never_called_concurrently() -> None:
    inside = threading.Lock()

    def finish(word: str) -> str:
        assert inside.acquire(blocking=False)
        time.sleep(1e-5)  # give another thread the chance to enter
        inside.release()
        return word

    analyser = Analyser("shared", finish)
    texts = [" ".join(f"w{i + j}" for j in range(50)) for i in range(400)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(analyser.terms, texts)) == [text.split() for text in texts]


def test_every_stemmer_of_pystemmer_is_an_analyser() -> None:
    stemmer = pytest.importorskip("Stemmer")
    assert set(stemmer.algorithms()) - {"english"} <= set(ANALYSERS)
    assert len({get_analyser(name).fingerprint for name in ANALYSERS}) == len(ANALYSERS)


@pytest.mark.parametrize(
    ("name", "text", "terms"),
    [
        ("german", "Häuser HAUS Straßen", ["haus", "haus", "strass"]),
        ("french", "l’homme d'hommes aujourd'hui", ["homm", "homm", "aujourd'hui"]),
        ("greek", "δρόμος ΔΡΌΜΟΙ", ["δρομ", "δρομ"]),
        ("turkish", "ISPARTA İzmir ısparta", ["ıspar", "izmir", "ıspar"]),
        ("porter2", "generously universities", ["generous", "universiti"]),
        ("plain", "東京タワーは高い", ["東", "京", "タワー", "は", "高", "い"]),
        ("plain", "iPhone東2023", ["iphone", "東", "2023"]),
        ("plain", "한국어 학교에", ["한국어", "학교에"]),
        ("plain", "บ้านไม้", ["บ้า", "าน", "นไ", "ไม้"]),
        ("cjk", "東京タワー", ["東京", "京タ", "タワ", "ワー"]),
        ("cjk", "東 한국어 naïve x", ["東", "한국", "국어", "naïve", "x"]),
        ("cjk", "ｶﾞｷﾞ", ["ガギ"]),
    ],
)
def test_languages(name: str, text: str, terms: list[str]) -> None:
    assert get_analyser(name).terms(text) == terms


@given(text=st.text(st.sampled_from("aé 東京がか\u3099タｶﾞー한\u1112\u1161\u11abไทม้\u0e31ខ្មែ。")))
@pytest.mark.parametrize("name", ["plain", "cjk"])
def test_segmentation_is_the_same_for_composed_text_and_in_windows(name: str, text: str) -> None:
    analyser = get_analyser(name)
    terms = analyser.terms(text)
    assert terms == analyser.terms(unicodedata.normalize("NFC", text))
    assert terms == analyser.terms(unicodedata.normalize("NFD", text))
    assert list(analyser.tokens(text).texts) == terms
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LONG_TEXT", 0)
        patch.setattr(module, "_WINDOW", 3)
        assert [term for window in analyser.windows(text) for term in window] == terms


def test_a_run_of_a_million_characters_is_split_in_linear_time() -> None:
    start = time.perf_counter()
    windows = get_analyser("cjk").windows("東京" * 500_000)
    assert max(map(len, windows)) <= module._WINDOW
    assert time.perf_counter() - start < 10


def test_shared_analyser_gives_the_same_terms_in_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CACHED_TERMS", 50)  # keeps the stemmer busy
    shared = Analyser("english", module._english())
    texts = [" ".join(PROBES[i:] + PROBES[:i]) for i in range(len(PROBES))]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(shared.terms, texts)) == [ENGLISH.terms(text) for text in texts]


def test_fingerprint_depends_on_behaviour() -> None:
    stemming = Analyser("english", lambda word: word.removesuffix("s"))
    assert len({ENGLISH.fingerprint, PLAIN.fingerprint, stemming.fingerprint}) == 3
    assert Analyser("english", module._english()).fingerprint == ENGLISH.fingerprint
    assert len(PROBES) >= 200


def test_fingerprints_are_those_of_released_versions() -> None:
    """A change here rejects older indexes: add a version and mention it in the changelog."""
    assert (ENGLISH.fingerprint, PLAIN.fingerprint) == ("english-1-ace931c3", "plain-2-9655834f")


def test_an_older_index_gets_the_version_that_made_it() -> None:
    """Version 1 of `plain` leaves Chinese, Japanese and Thai as they are."""
    first = get_analyser("plain", "plain-1-9dc99d36")
    assert (first.fingerprint, first.terms("東京 ไทย")) == ("plain-1-9dc99d36", ["東京", "ไทย"])
    assert get_analyser("plain", PLAIN.fingerprint) is PLAIN
    assert get_analyser("plain", "plain-9999-00000000") is PLAIN  # of a newer citadel: fingerprints differ


def test_unknown_analyser_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="unknown analyser 'klingon': choose one of english, plain"):
        get_analyser("klingon")


def test_missing_pystemmer_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Stemmer", None)
    with pytest.raises(UsageError, match="the english analyser needs PyStemmer: run `pip install PyStemmer`"):
        module._english()
