"""Reports from measurements written by hand: Markdown tables, pictures and an HTML page."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from citadel.errors import InputError, UsageError
from citadel.paper import paper, tables
from citadel.paper.attribution import read_passages
from citadel.paper.build import build_report, draw
from citadel.paper.choose import keys_sweep, usual, varied
from citadel.paper.figures import figure_6
from citadel.paper.measured import Measured, read_folder
from citadel.paper.record import Measurement
from citadel.paper.stages import figure_8
from tests.paper.test_family import keep

pytest.importorskip("matplotlib", reason="matplotlib is not installed: the extra [report]")

DYNAMIC = {
    "router": "dynamic",
    "tau": 0.9,
    "codec": "int8",
    "semantic": "auto",
    "engine": "native",
    "k": 1000,
}
CONFIG = {"tau": 0.9, "semantic_dimension": 128}
STAGES = ("encode", "plan", "token retrieval", "accumulate", "semantic", "sort", "ids", "search", "whole")
LATENCY: dict[str, Any] = {
    "milliseconds": {stage: {"mean": 0.5, "p50": 0.4, "p95": 0.8, "p99": 0.9} for stage in STAGES},
    "floors": {"search": 0.2},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Variants of CITADEL, COIL, ColBERT, a keys sweep and an explained text."""
    base = tmp_path_factory.mktemp("measured")
    for name in ("usual", "sweep/a", "sweep/b", "codec", "off"):
        (base / name).mkdir(parents=True)
    given: dict[str, Any] = {"config": CONFIG, "active_keys": {"0": [10, 20, 5], "0.9": [20, 10, 5]}}
    keep(base / "usual", "CITADEL", [0.5, 0.7], 100, settings=DYNAMIC, latency=LATENCY, **given)
    keep(
        base / "sweep" / "a",
        "CITADEL",
        [0.5, 0.7],
        200,
        settings={**DYNAMIC, "tau": 0.5},
        bytes=40_000,
        **given,
    )
    keep(
        base / "sweep" / "b",
        "CITADEL",
        [0.5, 0.6],
        50,
        settings={**DYNAMIC, "tau": 1.5},
        bytes=10_000,
        **given,
    )
    keep(
        base / "codec", "CITADEL", [0.4, 0.7], 100, settings={**DYNAMIC, "codec": "pq2"}, bytes=5_000, **given
    )
    keep(base / "off", "CITADEL", [0.3, 0.7], 90, settings={**DYNAMIC, "semantic": "off"}, **given)
    keep(base / "usual", "COIL-tok", [0.5, 0.6], 500, list_sizes=[[400, 1], [20, 10]], latency=LATENCY)
    keep(
        base / "usual",
        "ColBERT",
        [0.5, 0.6],
        20_000,
        settings={"router": "all_to_all"},
        list_sizes=[[600, 1]],
    )
    keep(base / "usual", "keys-1", [0.4, 0.4], 30, settings={**DYNAMIC, "tau": 0})
    keep(base / "usual", "keys-5", [0.5, 0.5], 90, settings={**DYNAMIC, "tau": 0})
    key = {"key": 7, "name": "motion", "weight": 1.0, "kept": True}
    tokens = [
        {"token": "relativity", "routed": True, "keys": [key]},
        {"token": "of", "routed": True, "keys": []},
    ]
    text = {
        "format": 1,
        "text": "relativity of",
        "side": "document",
        "router": "dynamic",
        "tau": 0.9,
        "tokens": tokens,
    }
    (base / "passage.json").write_text(json.dumps(text))
    return base


@pytest.fixture
def measurements(folder: Path) -> list[Measured]:
    return read_folder(folder)


@pytest.fixture(scope="module")
def report(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of all these measurements, built once."""
    out = tmp_path_factory.mktemp("report")
    assert build_report(folder, out) == [out / "report.md", out / "report.html"]
    return out


def row(table: Any, name: str) -> list[str]:
    return next(list(cells) for cells in table.rows if cells[0] == name)


def test_usual_picks_the_default_settings(measurements: list[Measured]) -> None:
    chosen = usual(measurements, "citadel", "tiny")
    assert chosen is not None and chosen.file.parent.name == "usual"
    assert usual(measurements, "CITADEL", "elsewhere") is None


def test_sweep_varies_one_setting(measurements: list[Measured]) -> None:
    assert [each.record.settings["tau"] for each in varied(measurements, "CITADEL", "tiny", "tau")] == [
        0.5,
        0.9,
        1.5,
    ]
    assert [each.record.settings["codec"] for each in varied(measurements, "CITADEL", "tiny", "codec")] == [
        "int8",
        "pq2",
    ]
    assert list(keys_sweep(measurements, "tiny")) == [1, 5]


@pytest.mark.parametrize("order", [1, -1])
def test_varied_prefers_latency_without_encoding(order: int) -> None:
    stages = {"search": {"mean": 1.0}}
    alone, swept = (
        Measured(
            Path(name),
            Measurement(
                "CITADEL", "tiny", 1, 1, settings={"tau": 0.9}, latency={"milliseconds": stages | extra}
            ),
        )
        for name, extra in (("alone.json", {"encode": {"mean": 9.0}}), ("swept.json", {}))
    )
    assert varied([alone, swept][::order], "CITADEL", "tiny", "tau") == [swept]


def test_table_1_has_every_system_of_the_paper(measurements: list[Measured]) -> None:
    table = tables.table_1(measurements)
    assert len(row(table, "CITADEL")) == len(table.columns)
    assert row(table, "CITADEL")[1] == "– (0.362)"
    assert row(table, "ColBERT")[-2:] == ["–", "–"]  # the paper has no CPU latency for it


def test_table_1_shows_our_msmarco_values(tmp_path: Path) -> None:
    file = keep(tmp_path, "CITADEL", [0.5, 0.7], 100, latency=LATENCY, bytes=5_000_000_000, settings=DYNAMIC)
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "collection": "msmarco-dev-small", "measures": {"RR@10": 0.37}}))
    cells = row(tables.table_1(read_folder(tmp_path)), "CITADEL")
    assert cells[1] == "0.3700 (0.362)" and cells[7:] == ["5 (78.3)", "0.5 (520)", "0.2"]


def test_table_2_shows_our_values_beside_the_papers(tmp_path: Path) -> None:
    file = keep(tmp_path, "CITADEL", [0.5, 0.7], 100, settings=DYNAMIC)
    file.write_text(file.read_text().replace('"tiny"', '"scifact"'))
    table = tables.table_2(read_folder(tmp_path))
    assert row(table, "CITADEL")[list(table.columns).index("SF")] == "0.6000 (0.674)"
    assert row(table, "CITADEL")[list(table.columns).index("average")] == "– (0.486)"


def test_systems_of_residual_codes_are_measured_or_marked(tmp_path: Path) -> None:
    keep(tmp_path, "CITADEL", [0.5, 0.7], 100, settings=DYNAMIC)
    keep(tmp_path, "ColBERT-PLAID", [0.5, 0.9], 100, settings={"router": "centroid", "codec": "residual2"})
    measured = read_folder(tmp_path)
    for table in (tables.table_1(measured), tables.table_2(measured), tables.table_5(measured)):
        assert "Not measured: ColBERT-v2." in table.notes, table.title
        assert row(table, "ColBERT-v2") and row(table, "ColBERT-PLAID"), table.title
    assert row(tables.table_5(measured), "ColBERT-PLAID")[1] == "0.7000"


def test_table_3_is_also_per_document(measurements: list[Measured]) -> None:
    table = tables.table_3(measurements)
    assert row(table, "CITADEL") == ["CITADEL", "100", "10", "10,500,000", "1.19"]
    assert row(table, "DPR-128") == ["DPR-128", "–", "–", "8,840,000", "1"]


def test_tables_4_5_and_6(measurements: list[Measured]) -> None:
    assert row(tables.table_4(measurements), "tiny, pq2")[4] == "500"
    assert row(tables.table_5(measurements), "CITADEL, semantic vector off at search")[1] == "0.5000"
    assert row(tables.table_6(measurements), "tiny, 5")[1] == "0.5000"
    assert row(tables.table_6(measurements), "tiny, 9")[1:3] == ["–", "–"]


def test_list_balance_by_hand(measurements: list[Measured]) -> None:
    cells = row(tables.balance_table(measurements), "tiny, COIL-tok")
    # One list of 400 and ten of 20: the largest has two thirds of the postings.
    assert cells[1:4] == ["11", "400", "66.67 %"]
    assert cells[4] == "0.576"


def test_every_row_has_all_columns(measurements: list[Measured]) -> None:
    makers = [tables.table_1, tables.table_2, tables.table_3, tables.table_4, tables.table_5, tables.table_6]
    for make in [*makers, tables.balance_table, tables.stage_table]:
        table = make(measurements)
        assert table.rows
        assert {len(cells) for cells in table.rows} == {len(table.columns)}, table.title


def test_report_has_every_picture_as_png_and_svg(report: Path) -> None:
    drawn = {file.stem for file in (report / "figures").glob("*.png")}
    assert drawn == {file.stem for file in (report / "figures").glob("*.svg")}
    assert {name.split("-")[0] for name in drawn} == {f"figure{number}" for number in (1, 3, 4, 5, 6, 7, 8)}
    for file in (report / "figures").glob("*.svg"):
        ElementTree.fromstring(file.read_text())
    named = re.findall(r"\((figures/[^)]+)\)", (report / "report.md").read_text())
    assert named and all((report / name).is_file() for name in named)


class Page(HTMLParser):
    """Collects the addresses that a page loads and the tags that it leaves open."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_self_contained(report: Path) -> None:
    text = (report / "report.html").read_text()
    page = Page()
    page.feed(text)
    assert page.open == []
    assert all(part.startswith(("data:image/svg+xml;base64,", "#")) for part in page.fetched)
    assert "<script" not in text


def test_pictures_are_reproducible(measurements: list[Measured], report: Path, tmp_path: Path) -> None:
    [picture] = figure_6(measurements)
    draw(picture, tmp_path)
    for suffix in ("png", "svg"):
        again = (tmp_path / f"{picture.name}.{suffix}").read_bytes()
        assert again == (report / "figures" / f"{picture.name}.{suffix}").read_bytes()


def test_report_of_one_system_lists_missing_parts(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    keep(
        tmp_path / "m", "CITADEL", [0.5, 0.7], 100, list_sizes=[], settings={"router": "dynamic", "tau": 0.9}
    )
    text = build_report(tmp_path / "m", tmp_path / "out")[0].read_text()
    assert text.count("Not measured yet.") >= 5


def test_unmeasured_stage_is_labelled(tmp_path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    search = {name: figures for name, figures in LATENCY["milliseconds"].items() if name != "encode"}
    keep(
        tmp_path, "COIL-full", [0.5, 0.6], 500, settings={"router": "static"}, config=CONFIG, latency=LATENCY
    )
    keep(
        tmp_path,
        "CITADEL",
        [0.5, 0.7],
        100,
        settings=DYNAMIC,
        config=CONFIG,
        latency={"milliseconds": search},
    )
    [picture] = figure_8(read_folder(tmp_path))
    assert "Not measured: encode of CITADEL." in picture.notes
    assert picture.draw is not None
    canvas = Figure()
    FigureCanvasAgg(canvas)
    picture.draw(canvas)
    left, right = canvas.axes
    [mark] = left.texts
    assert mark.get_text().strip() == "encode: not measured"
    assert mark.get_position() == pytest.approx((3.0, 1))  # six stages of 0.5 ms, second row
    assert not right.texts
    assert {axes.get_xlabel() for axes in canvas.axes} == {"milliseconds per query"}


def test_system_without_semantic_vector_has_no_semantic_stage(tmp_path: Path) -> None:
    stages = {name: figures for name, figures in LATENCY["milliseconds"].items() if name != "semantic"}
    latency = {"milliseconds": stages}
    keep(tmp_path, "COIL-tok", [0.5, 0.6], 500, settings={"router": "static"}, latency=latency)
    [picture] = figure_8(read_folder(tmp_path))
    assert not any("Not measured" in note for note in picture.notes)


def test_names_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    keep(tmp_path / "m", "a|b<script>", [0.5, 0.7], 100)
    done = build_report(tmp_path / "m", tmp_path / "out")
    assert "a\\|b" in done[0].read_text() and "<script>" not in done[1].read_text()


def test_truncated_explanation_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"tokens": [')
    with pytest.raises(InputError, match=r"bad\.json"):
        read_passages(tmp_path)


def test_missing_matplotlib_is_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"citadel-ir\[report\]"):
        build_report(folder, tmp_path / "out")


def test_paper_averages_match_its_columns() -> None:
    """Guards against copying errors. The paper prints .453 for SPLADE; its columns give .458."""
    for system, cells in paper.TABLE_2.items():
        assert len(cells) == len(paper.BEIR) + 1
        if system != "SPLADE":
            assert sum(cells[:13]) / 13 == pytest.approx(cells[13], abs=0.0011), system


def test_floor_of_a_measurement_without_latency() -> None:
    assert tables.floor_ms(Measurement("x", "c", 1, 1)) is None
