"""`citadel search`: terminal output, JSON and TREC runs."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from citadel.cli.support.batch_search import QueryHits
from citadel.cli.support.render_hits import show
from citadel.search.searcher import Searcher
from citadel.text.analyser import get_analyser
from citadel.types import Document, Hit
from tests.cli.conftest import Citadel, write_jsonl


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    rows: list[dict[str, object]] = [{"_id": "q1", "text": "evolution"}, {"_id": "q2", "text": "gravity"}]
    return write_jsonl(tmp_path / "queries.jsonl", rows)


def answers(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


def test_prints_rank_score_id_title_and_text(index: Path, citadel: Citadel) -> None:
    first, second = citadel("search", index, "relativity").out.splitlines()
    rank, score, id, title = first.split()
    assert (rank, id, title) == ("1.", "d1", "Relativity")
    assert float(score) > 0
    assert second == "    Einstein proposed relativity in physics."


def test_k_limits_the_hits(index: Path, citadel: Citadel) -> None:
    for k, lines in ((1, 2), (2, 4), (1_000_000_000, 6)):
        assert len(citadel("search", index, "proposed", "-k", k).out.splitlines()) == lines


def test_no_hits_is_not_an_error(index: Path, citadel: Citadel) -> None:
    for query in ("zebra", "the"):
        assert citadel("search", index, query).out == "no document matches\n"


def test_query_without_words_is_exit_4(index: Path, citadel: Citadel) -> None:
    assert (
        "the query '' has no words to search for: give at least one"
        in citadel("search", index, "", code=4).err
    )


def test_several_queries_are_printed_with_their_hits(index: Path, citadel: Citadel) -> None:
    lines = citadel("search", index, "evolution", "gravity").out.splitlines()
    assert [line for line in lines if line.startswith("?")] == ["? 1: evolution", "? 2: gravity"]


def test_json_has_one_line_per_query(index: Path, citadel: Citadel) -> None:
    first, second = answers(citadel("search", index, "relativity", "zebra", "--json").out)
    (hit,) = first.pop("hits")
    assert first == {"query_id": "1", "query": "relativity", "query_cut": False}
    assert hit.pop("score") > 0
    assert hit == {
        "rank": 1,
        "id": "d1",
        "title": "Relativity",
        "text": "Einstein proposed relativity in physics.",
        "metadata": {"year": 1905},
    }
    assert second == {"query_id": "2", "query": "zebra", "query_cut": False, "hits": []}


def test_json_lines_are_ascii(tmp_path: Path, citadel: Citadel) -> None:
    corpus = write_jsonl(tmp_path / "c.jsonl", [{"id": "é", "text": "one\u2028two\u0085three\x1b[31m café"}])
    citadel("index", corpus, tmp_path / "idx")
    out = citadel("search", tmp_path / "idx", "café", "--json").out
    (answer,) = answers(out)
    assert answer["hits"][0]["text"] == "one\u2028two\u0085three\x1b[31m café"
    assert "\x1b" not in citadel("search", tmp_path / "idx", "café").out


def test_queries_from_a_file_and_from_standard_input(index: Path, queries: Path, citadel: Citadel) -> None:
    from_file = citadel("search", index, "--queries", queries, "--json").out
    assert [answer["query_id"] for answer in answers(from_file)] == ["q1", "q2"]
    assert citadel("search", index, "--queries", "-", "--json", stdin=queries.read_bytes()).out == from_file
    assert citadel("search", index, "--queries", queries.parent, "--json").out == from_file


def test_queries_from_tsv(index: Path, tmp_path: Path, citadel: Citadel) -> None:
    (tmp_path / "q.tsv").write_text("q1\tevolution\n")
    (answer,) = answers(citadel("search", index, "--queries", tmp_path / "q.tsv", "--json").out)
    assert [hit["id"] for hit in answer["hits"]] == ["d2"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("oops", "q.jsonl:1: not valid JSON"),
        ('{"id": "1"}', "q.jsonl:1: no text"),
        ('{"id": "1", "text": "a"}\n{"id": "1", "text": "b"}', "q.jsonl:2: the query id '1' occurs twice"),
    ],
)
def test_bad_queries_are_exit_4(
    content: str, message: str, index: Path, tmp_path: Path, citadel: Citadel
) -> None:
    (tmp_path / "q.jsonl").write_text(content)
    assert message in citadel("search", index, "--queries", tmp_path / "q.jsonl", code=4).err


def test_query_that_is_not_utf8_is_exit_4(index: Path, citadel: Citadel) -> None:
    assert "half a surrogate pair" in citadel("search", index, "caf\udce9", code=4).err


def test_run_has_k_hits_per_query(tmp_path: Path, citadel: Citadel) -> None:
    corpus = write_jsonl(tmp_path / "c.jsonl", [{"id": f"d{n}", "text": "fox"} for n in range(1002)])
    citadel("index", corpus, tmp_path / "idx")
    done = citadel(
        "search", tmp_path / "idx", "fox", "--run", tmp_path / "run.trec", "--tag", "mine", "-k", 1000
    )
    assert done.out == ""
    rows = [line.split() for line in (tmp_path / "run.trec").read_text().splitlines()]
    assert len(rows) == 1000
    assert [row[0] + row[1] + row[3] + row[5] for row in rows[:2]] == ["1Q01mine", "1Q02mine"]
    assert len(citadel("search", tmp_path / "idx", "fox", "-k", 3, "--run", "-").out.splitlines()) == 3
    assert len(citadel("search", tmp_path / "idx", "fox", "--run", "-").out.splitlines()) == 10
    assert len(answers(citadel("search", tmp_path / "idx", "fox", "--json").out)[0]["hits"]) == 10


def test_run_and_json_together(index: Path, queries: Path, tmp_path: Path, citadel: Citadel) -> None:
    done = citadel("search", index, "--queries", queries, "--run", tmp_path / "run.trec", "--json")
    assert [answer["hits"][0]["id"] for answer in answers(done.out)] == ["d2", "d3"]
    assert [line.split()[2] for line in (tmp_path / "run.trec").read_text().splitlines()] == ["d2", "d3"]


@pytest.mark.parametrize("query", ["fox", "dog"])
def test_run_fails_if_a_document_id_has_white_space(query: str, tmp_path: Path, citadel: Citadel) -> None:
    """Whether the document is a hit or not."""
    corpus = write_jsonl(tmp_path / "c.jsonl", [{"id": "a b", "text": "fox"}, {"id": "c", "text": "dog"}])
    citadel("index", corpus, tmp_path / "idx")
    assert "'a b'" in citadel("search", tmp_path / "idx", query, "--run", tmp_path / "run.trec", code=4).err
    assert not (tmp_path / "run.trec").exists()
    citadel("search", tmp_path / "idx", query, "--json")


def test_unwritable_run_is_exit_4(index: Path, tmp_path: Path, citadel: Citadel) -> None:
    assert (
        "cannot be written"
        in citadel("search", index, "fox", "--run", tmp_path / "no" / "run.trec", code=4).err
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--semantic", "maybe"], "unknown semantic mode 'maybe'"),
        (["--tau", "1"], "this index's router is bm25"),
        (["--tag", "two words", "--run", "-"], "the tag 'two words'"),
    ],
)
def test_invalid_options(options: list[str], message: str, index: Path, citadel: Citadel) -> None:
    assert message in citadel("search", index, "gravity", *options, code=2).err


def test_hits_do_not_depend_on_threads(index: Path, citadel: Citadel) -> None:
    one = citadel("search", index, "physics", "proposed", "--json", "--threads", 1).out
    assert citadel("search", index, "physics", "proposed", "--json", "--threads", 3).out == one


# ---- terminal output ---------------------------------------------------------------------------------------

FOX = Document("d1", "A quick\nfox ran \x1b[31mhome. " + "Then it slept. " * 40, "The [bold]fox[/bold]")


def printed(terminal: bool) -> str:
    out = io.StringIO()
    colour = "standard" if terminal else None
    console = Console(file=out, width=60, force_terminal=terminal, color_system=colour, highlight=False)  # type: ignore[arg-type]
    answer = QueryHits("q1", "foxes", [Hit("d1", 7.25, 1, lambda rank: FOX)])
    show(answer, get_analyser("english"), console, named=True)
    return out.getvalue()


def test_file_output_is_plain() -> None:
    query, title, text = printed(terminal=False).splitlines()
    assert query == "? q1: foxes"
    assert title == " 1.   7.2500  d1  The [bold]fox[/bold]"
    assert text.startswith("    A quick fox ran [31mhome. Then")
    assert text.endswith(" …")


def test_terminal_output_highlights_matches_and_drops_control_characters() -> None:
    out = printed(terminal=True)
    assert "\x1b[1;33mfox\x1b[0m" in out
    assert "\x1b[31mhome" not in out
    assert len(out.splitlines()) > 3


def test_run_and_json_on_standard_output_are_refused(index: Path, citadel: Citadel) -> None:
    done = citadel("search", index, "relativity", "--run", "-", "--json", code=2)
    assert done.out == ""
    assert "name a file for the run" in done.err


@pytest.mark.parametrize("mode", ["exact", "rerank", "off"])
def test_semantic_mode_on_a_text_index_is_refused(mode: str, index: Path, citadel: Citadel) -> None:
    assert "leave --semantic out" in citadel("search", index, "relativity", "--semantic", mode, code=2).err
    citadel("search", index, "relativity", "--semantic", "auto")


def test_k_0_is_a_usage_error(index: Path, citadel: Citadel) -> None:
    done = citadel("search", index, "proposed", "-k", 0, code=2)
    assert (
        done.err
        == "citadel: Invalid value for '-k': 0 is not in the range x>=1; see `citadel search --help`\n"
    )


def test_ids_with_white_space_are_rejected_before_the_search(
    index: Path, tmp_path: Path, citadel: Citadel, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = 0
    search_batch = Searcher.search_batch

    def counted(self: Searcher, queries: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal searched
        searched += len(queries)
        return search_batch(self, queries, *arguments, **options)

    monkeypatch.setattr(Searcher, "search_batch", counted)
    queries, run = tmp_path / "queries.jsonl", tmp_path / "run.trec"
    rows: list[dict[str, object]] = [{"_id": f"q{n}", "text": "zebra"} for n in range(10)]
    write_jsonl(queries, [*rows, {"_id": "q 10", "text": "zebra"}])
    assert (
        "the id 'q 10' does not fit a TREC run"
        in citadel("search", index, "--queries", queries, "--run", run, code=4).err
    )
    assert (
        "the tag 'a b'"
        in citadel("search", index, "--queries", queries, "--run", run, "--tag", "a b", code=2).err
    )
    assert searched == 0
    citadel("add", index, write_jsonl(tmp_path / "more.jsonl", [{"id": "d 4", "text": "zebra"}]))
    write_jsonl(queries, rows)
    assert (
        "the id 'd 4' does not fit"
        in citadel("search", index, "--queries", queries, "--run", run, code=4).err
    )
    assert searched == 0
    assert not run.exists()
