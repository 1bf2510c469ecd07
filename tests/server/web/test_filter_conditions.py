"""`filter.js`: reading a filter, and adding and removing the conditions of facets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import citadel
from tests.server.web.conftest import Serve
from tests.server.web.test_page import opened

Run = Callable[..., Any]
TWICE = "A field or operator occurs twice in one object: join the two conditions with $and."
NO_OBJECT = 'A filter is a JSON object such as {"year": {"$gte": 1900}}.'


@pytest.fixture(scope="module")
def run(browser: Any, serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Call functions of the module in the page; an exception becomes its message."""
    folder = tmp_path_factory.mktemp("conditions") / "index"
    with citadel.Index.create(folder) as index:
        index.add([{"id": "d1", "text": "relativity"}])
        index.commit()
    script = """async ([name, parts]) => {
        const { parseFilter, selected, toggle, writeFilter } = await import("/filter.js");
        const calls = {
            parse: (text) => JSON.stringify(parseFilter(text)),
            toggle: (text, ...rest) => writeFilter(toggle(parseFilter(text), ...rest)),
            selected: (text, ...rest) => selected(parseFilter(text), ...rest),
        };
        try { return calls[name](...parts); } catch (error) { return error.message; }
    }"""
    with serve(folder) as served, opened(browser, served.url) as page:
        yield lambda name, *parts: page.evaluate(script, [name, parts])


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("", "null"),
        (" {} ", "null"),
        ('{"a": {"b": 1}, "c": [{"a": 1}, {"a": 2}]}', '{"a":{"b":1},"c":[{"a":1},{"a":2}]}'),
        (r'{"a\": 1, \"a": "x\": y"}', r'{"a\": 1, \"a":"x\": y"}'),
        ('{"a": {"$gt": 1}, "a": {"$lt": 2}}', TWICE),
        ('{"$not": ' * 100_000 + "{}" + "}" * 100_000, "The filter is nested too deeply."),
        ('"text"', NO_OBJECT),
        ("null", NO_OBJECT),
    ],
    ids=["blank", "empty", "nested", "quotes", "twice", "deep", "string", "null"],
)
def test_parse(run: Run, text: str, result: str) -> None:
    assert run("parse", text) == result


FACETS = [
    ("", "year", "number", 1905, '{ "year": 1905 }'),
    ('{"year": 1905}', "year", "number", 1906, '{ "year": { "$in": [ 1905, 1906 ] } }'),
    ('{"year": {"$eq": 1905}}', "year", "number", 1906, '{ "year": { "$in": [ 1905, 1906 ] } }'),
    ('{"year": {"$gt": 1900}}', "year", "number", 1906, '{ "year": { "$gt": 1900, "$eq": 1906 } }'),
    ('{"on": false}', "on", "boolean", True, '{ "on": { "$in": [ false, true ] } }'),
    ("", "tags", "list", "a", '{ "tags": { "$contains": "a" } }'),
    (
        '{"tags": {"$contains": "a"}}',
        "tags",
        "list",
        "b",
        '{ "tags": { "$contains": "a" }, "$and": [ { "tags": { "$contains": "b" } } ] }',
    ),
    (
        '{"$and": [{"year": 1905}]}',
        "tags",
        "list",
        "b",
        '{ "$and": [ { "year": 1905 } ], "tags": { "$contains": "b" } }',
    ),
    ("", "__proto__", "string", "a", '{ "__proto__": "a" }'),
    ('{"__proto__": "a"}', "__proto__", "string", "b", '{ "__proto__": { "$in": [ "a", "b" ] } }'),
    ("", "constructor", "list", "a", '{ "constructor": { "$contains": "a" } }'),
]


@pytest.mark.parametrize(("text", "field", "kind", "value", "result"), FACETS)
def test_add_a_value(run: Run, text: str, field: str, kind: str, value: Any, result: str) -> None:
    assert run("toggle", text, field, kind, value, True) == result
    assert value in run("selected", result, field, kind)


@pytest.mark.parametrize(("text", "field", "kind", "value", "result"), FACETS)
def test_remove_a_value(run: Run, text: str, field: str, kind: str, value: Any, result: str) -> None:
    """What remains selects the same values as before, and nothing else has changed."""
    removed = run("toggle", result, field, kind, value, False)
    assert run("selected", removed, field, kind) == run("selected", text, field, kind)
    assert run("toggle", removed, field, kind, value, True) == result


def test_no_value_replaces_null(run: Run) -> None:
    assert run("selected", '{"year": null}', "year", "number") == []
    assert run("toggle", '{"year": null}', "year", "number", 1906, True) == '{ "year": 1906 }'
