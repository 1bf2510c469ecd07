"""`citadel explain`: matches and texts as a table, JSON and HTML."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Citadel
from tests.support.models import ModelFolder


def test_match_as_table(index: Path, citadel: Citadel) -> None:
    done = citadel("explain", index, "who proposed relativity", "d1")
    assert done.out.startswith("d1  Relativity  score ")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert any(line.startswith("who who ") and line.endswith("no match") for line in lines)
    assert any(
        line.startswith("relativity rel ") and "Relativity ×2" in line and "█" in line for line in lines
    )


def test_match_as_json(index: Path, citadel: Citadel) -> None:
    explanation = json.loads(citadel("explain", index, "who proposed relativity", "d1", "--json").out)
    [hit] = json.loads(citadel("search", index, "who proposed relativity", "--json", "-k", 1).out)["hits"]
    assert explanation["score"] == hit["score"] and explanation["format"] == 2
    assert sum(match["share"] for match in explanation["matches"]) == pytest.approx(1)
    assert set(explanation) == {
        "format", "query", "id", "title", "text", "router", "codec", "tau", "semantic_mode", "score",
        "semantic", "cut", "query_tokens", "document_tokens", "matches", "title_spans", "text_spans",
        "snippet", "text_start", "text_cut",
    }  # fmt: skip
    assert set(explanation["matches"][1]) == {
        "query_tokens",
        "key",
        "name",
        "weight",
        "gain",
        "share",
        "postings",
    }
    assert set(explanation["matches"][1]["postings"][0]) == {"document_tokens", "weight", "count", "product"}
    assert set(explanation["query_tokens"][0]) == {
        "position",
        "token",
        "field",
        "start",
        "end",
        "alternatives",
    }
    assert set(explanation["document_tokens"][0]) == {"position", "token", "field", "start", "end"}
    span = explanation["snippet"]["spans"][0]
    assert explanation["snippet"]["text"][span["start"] : span["end"]] == "proposed"


def test_html(index: Path, tmp_path: Path, citadel: Citadel) -> None:
    done = citadel("explain", index, "relativity", "d1", "--html", tmp_path / "why.html")
    assert done.out == "" and "wrote" in done.err
    page = (tmp_path / "why.html").read_text()
    assert page == citadel("explain", index, "relativity", "d1", "--html", "-").out
    assert page.startswith("<!doctype html>")


def test_text_with_a_model(tiny_model: ModelFolder, citadel: Citadel) -> None:
    done = citadel("explain", "--text", "einstein proposed", "--model", tiny_model(), "--tau", "1.2")
    assert "keys (τ = 1.2)" in done.out and "(" in done.out.split("einstein", 2)[2]
    explanation = json.loads(
        citadel("explain", "--text", "rome", "--model", tiny_model(), "--tau", "0", "--json").out
    )
    assert set(explanation) == {"format", "text", "side", "router", "tau", "cut", "tokens", "keys"}
    assert set(explanation["tokens"][1]) == {
        "position",
        "token",
        "field",
        "start",
        "end",
        "routed",
        "pruned",
        "keys",
    }
    assert set(explanation["tokens"][1]["keys"][0]) == {"key", "name", "weight", "kept", "repeated"}
    query = json.loads(
        citadel("explain", "--text", "rome", "--model", tiny_model(), "--side", "query", "--json").out
    )
    assert query["side"] == "query"


def test_text_with_the_default_model(
    tiny_model: ModelFolder, citadel: Citadel, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = citadel("explain", "--text", "rome", "--model", tiny_model(), "--json").out
    monkeypatch.setenv("CITADEL_MODEL", str(tiny_model()))
    assert citadel("explain", "--text", "rome", "--json").out == named


def test_text_with_an_index(index: Path, citadel: Citadel) -> None:
    assert "gravit" in citadel("explain", index, "--text", "the gravity").out


def test_vectors(tmp_path: Path, citadel: Citadel) -> None:
    vectors = np.eye(2, dtype=np.float32)
    np.savez(
        tmp_path / "corpus.npz", ids=["a"], offsets=[0, 2], keys=[1, 2], weights=[1.0, 1.0], vectors=vectors
    )
    np.savez(tmp_path / "query.npz", keys=[2], weights=[1.0], vectors=vectors[1:])
    np.savez(tmp_path / "two.npz", query_ids=["q", "r"], offsets=[0, 1, 2], keys=[1, 2], weights=[1.0, 1.0],
             vectors=vectors)  # fmt: skip
    citadel("index", tmp_path / "corpus.npz", tmp_path / "idx", "--fingerprint", "by hand")
    explanation = json.loads(
        citadel("explain", tmp_path / "idx", "a", "--vectors", tmp_path / "query.npz", "--json").out
    )
    assert explanation["query"] is None and explanation["score"] == pytest.approx(1, rel=0.01)
    done = citadel("explain", tmp_path / "idx", "a", "--vectors", tmp_path / "two.npz", code=4)
    assert "give a file with one query" in done.err
    assert "built from vectors" in citadel("explain", tmp_path / "idx", "fox", "a", code=2).err


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path, citadel: Citadel) -> None:
    (tmp_path / "evil.jsonl").write_text(
        json.dumps({"id": "e", "title": "a\x1b[2J", "text": "fox\x1b[31m\nhen"}) + "\n"
    )
    citadel("index", tmp_path / "evil.jsonl", tmp_path / "idx")
    out = citadel("explain", tmp_path / "idx", "fox\x1b[2J hen", "e").out
    assert "\x1b" not in out and "fox" in out
    assert "\x1b" not in citadel("explain", tmp_path / "idx", "--text", "a\x1b[2J fox").out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "0 arguments given"),
        (["INDEX", "fox"], 2, "2 arguments given"),
        (["INDEX", "fox", "d9"], 4, "no document 'd9'"),
        (["INDEX", "fox", "d1", "--tau", "0.5"], 2, "dynamic"),
        (["INDEX", "fox", "d1", "--semantic", "some"], 2, "unknown semantic mode"),
        (["INDEX", "fox", "d1", "--json", "--html", "-"], 2, "both print"),
        (["INDEX", "fox", "d1", "--html", "/nowhere/why.html"], 4, "cannot be written"),
        (["--text", "fox"], 2, "needs either"),
        (["INDEX", "more", "--text", "fox"], 2, "needs either"),
        (["--text", "fox", "--model", "/nowhere"], 4, "there is no such model"),
        (["INDEX", "--text", "fox", "--side", "both"], 2, "unknown side"),
    ],
)
def test_invalid_arguments(
    arguments: list[str], code: int, message: str, index: Path, citadel: Citadel
) -> None:
    named = [str(index) if argument == "INDEX" else argument for argument in arguments]
    assert message in citadel("explain", *named, code=code).err
