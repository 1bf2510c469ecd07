"""Fuzzing by the OpenAPI document: only documented responses, and no 5xx."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import citadel
from citadel.filter.parse import given_filter
from tests.conftest import NIGHT
from tests.support.serving import TOKEN, Running, running, text_index

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "response_headers_conformance,negative_data_rejection"
)
PATHS = (
    "documents",
    "search",
    "search/batch",
    "explain",
    "explain/text",
    "count",
    "facets",
    "list",
    "delete",
    "commit",
    "metadata",
    "rollback",
    "merge",
)
EXAMPLES = 400 if NIGHT else 200


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with running(text_index(tmp_path / "i")) as serving:
        yield serving


def test_schemathesis_finds_nothing(
    server: Running, tmp_path: Path, seed: int, filters: dict[str, int]
) -> None:
    pytest.importorskip("schemathesis", reason="schemathesis is not installed: `make setup`")
    report = tmp_path / "answers.yaml"
    command = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "run",
        f"{server.client.url}/openapi.json",
        "--header",
        f"Authorization: Bearer {TOKEN}",
    ]
    command += [
        "--max-examples",
        str(EXAMPLES),
        "--checks",
        CHECKS,
        "--phases",
        "examples,coverage,fuzzing,stateful",
    ]
    command += ["--seed", str(seed), "--no-color", "--report-vcr-path", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    sent = report.read_text()
    assert server.service.location not in sent and "Traceback (most recent call last)" not in sent
    assert min(filters.values()) > 50, filters


@pytest.fixture
def filters(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many filters reached the routes and were evaluated or refused."""
    counts = {"evaluated": 0, "refused": 0}

    def counted(value: Any) -> Any:
        try:
            parsed = given_filter(value)
        except citadel.FilterError:
            counts["refused"] += 1
            raise
        counts["evaluated"] += value is not None
        return parsed

    for route in ("search", "explain", "listing"):
        monkeypatch.setattr(f"citadel.server.routes.{route}.given_filter", counted)
    return counts


def test_every_openapi_example_runs(server: Running) -> None:
    """In an order that adds documents before they are used."""
    schema = server.client.call("GET", "/openapi.json")
    ran = 0
    for path in (f"/v1/{name}" for name in PATHS):
        reference = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"][
            "$ref"
        ]
        for example in schema["components"]["schemas"][reference.rpartition("/")[2]]["examples"]:
            answer = server.client.call("POST", path, example)
            assert valid(answer, schema, schema["paths"][path]["post"])
            ran += 1
    assert ran == len(PATHS)
    assert server.client.search("who proposed relativity", k=3).ids[0] == "d1"


def test_openapi_documents_limits_and_tokens(server: Running) -> None:
    schema = server.client.call("GET", "/openapi.json")
    assert schema["components"]["schemas"]["SearchRequest"]["properties"]["k"]["maximum"] == 1000
    assert schema["paths"]["/v1/commit"]["post"]["security"] == [{"bearer": []}]
    assert "security" not in schema["paths"]["/health/live"]["get"]
    described = {(method, path) for path, methods in schema["paths"].items() for method in methods}
    text = (Path(__file__).parents[2] / "docs" / "reference" / "http.md").read_text()
    missing = [
        f"{method.upper()} {path}" for method, path in described if f"{method.upper()} {path}" not in text
    ]
    assert missing == []


def valid(answer: object, schema: dict[str, object], route: dict[str, object]) -> bool:
    jsonschema = pytest.importorskip("jsonschema_rs")
    responses: dict[str, dict[str, dict[str, dict[str, object]]]] = route["responses"]  # type: ignore[assignment]
    wanted = responses["200"]["content"]["application/json"]["schema"]
    whole = {**wanted, "components": schema["components"]}  # type: ignore[dict-item]
    jsonschema.validate(json.loads(json.dumps(whole)), answer)
    return True
