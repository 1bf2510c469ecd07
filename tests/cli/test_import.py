"""`citadel import` and `citadel export --format sentence-transformers` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Citadel
from tests.support.foreign_files import write_bi_encoder, write_colbert, write_splade
from tests.support.models import tiny_config, write_checkpoint


@pytest.mark.parametrize(
    ("write", "more"),
    [(write_bi_encoder, []), (write_colbert, []), (write_splade, ["--type", "splade"])],
)
def test_from_a_foreign_model_to_a_hit_and_back(
    write: object, more: list[str], corpus: Path, tmp_path: Path, citadel: Citadel
) -> None:
    assert callable(write)
    source, model = write(tmp_path / "source"), tmp_path / "model"
    done = citadel("import", source, "--out", model, *more)
    assert "agrees with torch" in done.out and done.out.endswith("MB\n")
    citadel("index", corpus, tmp_path / "idx", "--model", model)
    done = citadel("search", tmp_path / "idx", "darwin", "--json", "-k", "2", "--model", model)
    assert json.loads(done.out)["hits"]
    done = citadel("export", model, "--out", tmp_path / "back", "--format", "sentence-transformers")
    assert (tmp_path / "back" / "modules.json").is_file() and "sentence-transformers" in done.out
    again = citadel("import", tmp_path / "back", "--out", tmp_path / "again")
    assert again.out.endswith("MB\n")


def test_unknown_format_and_type_are_usage_errors(tmp_path: Path, citadel: Citadel) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", tiny_config("none"))
    done = citadel("export", checkpoint, "--out", tmp_path / "out", "--format", "gguf", code=2)
    assert "choose onnx or sentence-transformers" in done.err
    done = citadel("import", checkpoint, "--out", tmp_path / "out", "--type", "colbert", code=2)
    assert "unknown type 'colbert'" in done.err


def test_checkpoint_that_could_run_code_is_exit_4(tmp_path: Path, citadel: Citadel) -> None:
    (tmp_path / "model.ckpt").write_bytes(b"\x80\x02cos\nsystem\nX\x01\x00\x00\x00a\x85R.")
    backbone = write_bi_encoder(tmp_path / "backbone")
    done = citadel(
        "import", tmp_path / "model.ckpt", "--out", tmp_path / "out", "--backbone", backbone, code=4
    )
    assert "pickled checkpoint is refused" in done.err and "clean.ckpt" in done.err
