"""Training configs: defaults, presets, fingerprints, and errors that name the key."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import pytest

from citadel.encode.config import BackboneConfig
from citadel.errors import InputError
from citadel.train.config import expand, load_train_config, parse_train_config
from citadel.train.students.config import load_distill_config
from tests.style.calls import ROOT

TEXT = """
name = "demo"
seed = 3
[model]
backbone = "bert"
router = "dynamic"
tau = 0.9
[data]
folder = "data"
kinds = {heading = 0.3, "long name" = 0}
[optimizer]
epochs = 2
"""


def test_values_and_defaults() -> None:
    config = parse_train_config(TEXT)
    assert (config.name, config.seed, config.model.backbone, config.model.router) == (
        "demo",
        3,
        "bert",
        "dynamic",
    )
    assert config.model.config(BackboneConfig(), name="x").tau == 0.9
    assert (config.data.group, config.data.query_length, config.data.passage_length) == (8, 32, 128)
    assert config.data.kinds == {"heading": 0.3, "long name": 0}
    assert config.data.margin == -math.inf


def test_effective_config_round_trips() -> None:
    config = parse_train_config(TEXT)
    again = parse_train_config(config.to_toml())
    assert again.to_toml() == config.to_toml()
    assert again.fingerprint == config.fingerprint
    assert "group = 8" in config.to_toml()


def test_fingerprint_covers_what_determines_the_weights() -> None:
    config = parse_train_config(TEXT)
    assert parse_train_config(TEXT + "[run]\nlog_every = 1\ndevice = 'cpu'").fingerprint == config.fingerprint
    assert parse_train_config(TEXT.replace("seed = 3", "seed = 4")).fingerprint != config.fingerprint
    assert parse_train_config(TEXT + "lr = 1e-4").fingerprint != config.fingerprint
    assert config.with_steps(5).fingerprint != config.fingerprint


def test_explicit_values_override_a_preset() -> None:
    released = parse_train_config(TEXT + "[loss]\npreset = 'released'\nbeta = 0.5").loss
    assert (released.beta, released.l1, released.l1_sides, released.balance) == (
        0.5,
        "top-k",
        "passages",
        "top-k",
    )
    assert released.distill_router
    paper = parse_train_config(TEXT + "[loss]\npreset = 'paper'").loss
    assert (paper.alpha, paper.beta, paper.l1, paper.l1_sides, paper.balance) == (
        1e-2,
        1e-5,
        "vocabulary",
        "both",
        "argmax",
    )


def test_steps_from_epochs() -> None:
    optimizer = parse_train_config(TEXT + "batch = 10\naccumulate = 2").optimizer
    assert optimizer.total_steps(examples=101) == 11  # 202 ÷ 20, rounded up
    assert optimizer.warm_up_steps(total=50) == 5
    assert parse_train_config(TEXT + "warm_up = 30").optimizer.warm_up_steps(total=50) == 30


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("epochs = 2", "epochs = 2\nleraning_rate = 1"), "optimizer.leraning_rate"),
        (("[data]", "[dat]\na = 1\n[data]"), "'dat'"),
        (("epochs = 2", "epochs = 'two'"), "optimizer.epochs"),
        (("epochs = 2", ""), "optimizer.steps"),
        (("epochs = 2", "epochs = 2\nsteps = 3"), "optimizer.steps"),
        (("router = \"dynamic\"", "router = \"other\""), "'other'"),
        (("router = \"dynamic\"", ""), "model.router"),
        (("backbone = \"bert\"", ""), "model.backbone"),
        (("backbone = \"bert\"", "backbone = 7"), "model.backbone"),
        (("tau = 0.9", "tua = 0.9"), "model.tua"),
        (("tau = 0.9", "tau = true"), "model.tau"),
        (("folder = \"data\"", "format = \"csv\""), "data.format"),
        (("heading = 0.3", "heading = -1"), "data.kinds.heading"),
        (("heading = 0.3", "heading = \"a\""), "data.kinds.heading"),
        (("folder = \"data\"", "crops = 2.0"), "data.crops"),
        (("folder = \"data\"", "titled = 0.5"), "data.titled"),
        (("folder = \"data\"", "group = 0"), "data.group"),
        (("[model]", "[loss]\npreset = \"mine\"\n[model]"), "loss.preset"),
        (("[model]", "[loss]\ntemperature = 0\n[model]"), "loss.temperature"),
        (("[model]", "[loss]\nanchor = 1.0\n[model]"), "loss.teacher"),
        (("[model]", "[loss]\nteacher = \"t\"\nanchor_vectors = 1.0\n[model]"), "loss.anchor_vectors"),
        (("[model]", "[router]\nsemantic_start = \"zero\"\n[model]"), "router.semantic_start"),
        (("[model]", "[run]\nprecision = \"fp8\"\n[model]"), "run.precision"),
        (("seed = 3", "seed = -3"), "seed"),
        (("seed = 3", "data = 3"), "TOML"),
        (("seed = 3", "seed = "), "TOML"),
    ],
)  # fmt: skip
def test_error_names_the_key(change: tuple[str, str], named: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_train_config(TEXT.replace(*change), "run.toml")
    assert str(caught.value).startswith("run.toml: ")
    assert named in str(caught.value)
    assert caught.value.exit_code == 4


def test_missing_config_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.toml: cannot be opened"):
        load_train_config(tmp_path / "none.toml")


def test_data_folder_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CITADEL_DATA", "/data")
    assert expand("$CITADEL_DATA/train") == expand("${CITADEL_DATA}/train") == "/data/train"
    assert expand("train") == "train"


STUDENTS = sorted((ROOT / "configs").glob("tiny-*.toml"))  # of `citadel distill`
CONFIGS = sorted({*(ROOT / "configs").rglob("*.toml")} - {*STUDENTS})
TABLE = {
    "dpr-128", "dpr-768", "splade", "splade-v2", "coil-tok", "coil-full", "colbert", "colbert-v2",
    "cocondenser",
    "citadel-tok", "citadel", "citadel-plus", "citadel-plus-noreg", "small-en", "smoke",
}  # fmt: skip


def test_every_system_has_a_config() -> None:
    assert {path.stem for path in CONFIGS} >= TABLE


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_config_is_valid(path: Path) -> None:
    config = load_train_config(path)
    assert config.name == path.stem


@pytest.mark.parametrize("path", STUDENTS, ids=lambda path: path.stem)
def test_student_config_is_valid(path: Path) -> None:
    assert load_distill_config(path).name == path.stem


TIME = re.compile(r"Time: (under a minute|\d+ min|estimated [\d.]+ h on one H200)")
TERMS = re.compile(
    r"estimated ([\d.]+) h .* ([\d.]+) M passages at ([\d,]+)/s \(gte-small\) × ([\d.]+) .* × ([\d.]+) "
)


@pytest.mark.parametrize("path", [*CONFIGS, *STUDENTS], ids=lambda path: path.stem)
def test_config_states_expected_result_and_time(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    header = " ".join(
        line[1:].strip() for line in itertools.takewhile(lambda line: line.startswith("#"), lines)
    )
    assert re.search(r"Expected( on| \(|: )", header)
    assert TIME.search(header)
    if terms := TERMS.search(header):
        hours, millions, rate, backbone, cache = (float(term.replace(",", "")) for term in terms.groups())
        assert hours == round(millions * 1e6 / (rate * backbone * cache) / 3600, 1)
        assert f"| {terms.group(3)} |" in (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert bool(terms) == ("Expected on MS MARCO" in header)
