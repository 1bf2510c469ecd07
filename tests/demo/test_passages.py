"""The passages of the demonstration: complete, fair, the same every time, and silent."""

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


def test_well_known_names_are_found(documents):
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


def test_there_are_many_but_not_too_many(documents):
    assert 2000 < len(documents) <= MAX_PASSAGES


def test_a_cut_leaves_every_module_represented(documents):
    modules = {document.metadata["module"] for document in documents}
    few = list(passages(limit=len(modules)))
    assert {document.metadata["module"] for document in few} == modules


def test_the_same_passages_in_the_same_order_every_time(documents):
    assert list(passages()) == documents


def test_no_address_of_this_run_is_left(documents):
    assert not [d.id for d in documents if re.search(r"at 0x[0-9a-f]{6}", d.encoded_text)]


def test_modules_that_act_when_imported_are_left_out(documents):
    tops = {document.id.split(".")[0] for document in documents}
    assert not tops & {"antigravity", "this", "idlelib", "test", "tkinter", "turtle"}


def test_nothing_is_imported_or_printed_here(capfd):
    before = set(sys.modules)
    assert list(passages(limit=1))
    assert "imaplib" not in set(sys.modules) - before
    assert capfd.readouterr() == ("", "")


def test_a_repeated_text_keeps_its_first_name():
    same = [Document("os.getcwd", "The current folder."), Document("posix.getcwd", "The current folder.")]
    assert [document.id for document in without_repeats(same)] == ["os.getcwd"]


def test_turns_are_fair():
    assert list(in_turns([[1, 2, 3], [], [4], [5, 6]])) == [1, 4, 5, 2, 6, 3]


def test_a_line_becomes_a_document():
    line = '{"id": "m.f", "kind": "function", "module": "m", "title": "m.f(x)", "text": "Gives x back."}'
    assert to_document(line) == Document("m.f", "Gives x back.", "m.f(x)", {"kind": "function", "module": "m"})


def test_a_signature_that_cannot_be_read_is_empty():
    class Hostile:
        __signature__ = 7

        def __call__(self) -> None: ...

    assert collect.signature(Hostile()) == ""


def test_a_short_or_missing_docstring_is_no_documentation():
    def bare() -> None: ...

    def brief() -> None:
        """Brief."""

    assert collect.documentation(bare) == ""
    assert collect.documentation(brief) == ""


def test_an_attribute_says_what_it_belongs_to(documents):
    found = {document.id: document.text for document in documents}
    assert found["collections.deque.maxlen"].startswith("maximum size of a deque")
    assert "deque: A list-like sequence" in found["collections.deque.maxlen"]
