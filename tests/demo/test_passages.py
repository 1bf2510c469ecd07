"""Passages of the demo: complete, deterministic, spread over all modules, no output."""

from __future__ import annotations

import re
import sys

import pytest

from citadel.demo import collect
from citadel.demo.passages import MAX_PASSAGES, in_turns, passages, to_document, without_repeats
from citadel.types import Document


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return list(passages())


def test_well_known_names_are_present(documents):
    by_id = {document.id: document for document in documents}
    assert by_id["json.dumps"].title.startswith("json.dumps(obj")
    assert by_id["json.dumps"].text.startswith("Serialize ``obj`` to a JSON formatted")
    assert by_id["json.dumps"].metadata == {"kind": "function", "module": "json"}
    assert by_id["collections.deque"].metadata["kind"] == "class"
    assert by_id["textwrap"].metadata["kind"] == "module"


def test_ids_and_texts_are_unique_and_not_empty(documents):
    assert len({document.id for document in documents}) == len(documents)
    assert len({document.text for document in documents}) == len(documents)
    assert all(document.id and document.title and document.text for document in documents)


def test_number_of_passages(documents):
    assert 2000 < len(documents) <= MAX_PASSAGES


def test_limit_keeps_every_module(documents):
    modules = {document.metadata["module"] for document in documents}
    few = list(passages(limit=len(modules)))
    assert {document.metadata["module"] for document in few} == modules


def test_passages_are_deterministic(documents):
    assert list(passages()) == documents


def test_memory_addresses_are_removed(documents):
    assert not [d.id for d in documents if re.search(r"at 0x[0-9a-f]{6}", d.encoded_text)]


def test_modules_with_side_effects_are_left_out(documents):
    tops = {document.id.split(".")[0] for document in documents}
    assert not tops & {"antigravity", "this", "idlelib", "test", "tkinter", "turtle"}


def test_passages_import_and_print_nothing(capfd):
    before = set(sys.modules)
    assert list(passages(limit=1))
    assert "imaplib" not in set(sys.modules) - before
    assert capfd.readouterr() == ("", "")


def test_repeated_text_keeps_its_first_name():
    same = [Document("os.getcwd", "The current folder."), Document("posix.getcwd", "The current folder.")]
    assert [document.id for document in without_repeats(same)] == ["os.getcwd"]


def test_groups_are_interleaved():
    assert list(in_turns([[1, 2, 3], [], [4], [5, 6]])) == [1, 4, 5, 2, 6, 3]


def test_line_to_document():
    line = '{"id": "m.f", "kind": "function", "module": "m", "title": "m.f(x)", "text": "Return x."}'
    assert to_document(line) == Document("m.f", "Return x.", "m.f(x)", {"kind": "function", "module": "m"})


def test_unreadable_signature_is_empty():
    class Hostile:
        __signature__ = 7

        def __call__(self) -> None: ...

    assert collect.signature(Hostile()) == ""


def test_short_or_missing_docstring_is_ignored():
    def bare() -> None: ...

    def brief() -> None:
        """Brief."""

    assert collect.documentation(bare) == ""
    assert collect.documentation(brief) == ""


def test_property_text_names_its_class(documents):
    texts = {document.id: document.text for document in documents}
    assert texts["collections.deque.maxlen"].startswith("maximum size of a deque")
    assert "deque: A list-like sequence" in texts["collections.deque.maxlen"]
