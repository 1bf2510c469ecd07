"""`citadel check`: damage is reported and repaired."""

from __future__ import annotations

from pathlib import Path

import pytest

from citadel.text.analyser import get_analyser
from tests.cli.conftest import Citadel
from tests.support.models import ModelFolder


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_undamaged_index(index: Path, citadel: Citadel) -> None:
    assert "opens: 3 documents, 1 segment" in citadel("check", index).out
    assert "every byte read" in citadel("check", index, "--deep").out
    assert "every byte read" in citadel("check", index, "--repair").out


@pytest.mark.parametrize("pattern", ["seg-*.cit", "docs-*.sqlite"])
def test_flipped_bit_is_exit_3_and_names_the_file(pattern: str, index: Path, citadel: Citadel) -> None:
    (file,) = index.glob(pattern)
    flip(file, file.stat().st_size // 2)
    done = citadel("check", index, "--deep", code=3)
    assert file.name in done.err
    assert "is damaged" in done.out


def test_repair_rebuilds_damaged_lists(index: Path, citadel: Citadel) -> None:
    before = set(index.glob("seg-*"))
    citadel("add", index, "-", stdin=b'{"id": "d4", "text": "fourth"}\n')
    (added,) = set(index.glob("seg-*")) - before
    flip(added, added.stat().st_size // 2)
    done = citadel("check", index, "--deep", code=3)
    assert "--repair`: repair keeps all 4 documents" in done.out
    repaired = citadel("check", index, "--repair").out
    assert "is whole: 4 documents" in repaired
    citadel("check", index, "--deep")
    assert (
        "1 document added, 1 replaced; 4 in total"
        in citadel("add", index, "-", stdin=b'{"id": "d4", "text": "fourth"}\n').out
    )


def test_damage_is_reported_when_the_analyser_differs(
    tmp_path: Path, corpus: Path, citadel: Citadel, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "bm25"
    citadel("index", corpus, index, "--model", "bm25")
    (file,) = index.glob("seg-*")
    flip(file, file.stat().st_size // 2)
    monkeypatch.setitem(vars(get_analyser("english")), "fingerprint", "english-1-00000000")
    done = citadel("check", index, "--deep", code=3)
    assert "this machine has english-1-00000000; install the same PyStemmer" in done.out


def test_repair_without_any_intact_generation_changes_nothing(index: Path, citadel: Citadel) -> None:
    for file in index.glob("gen.*"):
        flip(file, 5)
    before = sorted(index.iterdir())
    citadel("check", index, "--repair", code=3)
    assert sorted(index.iterdir()) == before


def test_unknown_format_names_both_versions(index: Path, citadel: Citadel) -> None:
    from citadel.index.checksum import crc32c

    newest = max(index.glob("gen.*"))
    line = newest.read_bytes().splitlines()[0].replace(b'"format": 2', b'"format": 99')
    newest.write_bytes(line + f"\n{crc32c(line):08x}\n".encode())
    error = citadel("check", index, code=3).err
    assert "99" in error
    assert "format 2" in error


def test_repair_drops_documents_only_with_yes(index: Path, citadel: Citadel) -> None:
    (file,) = index.glob("docs-*.sqlite")
    flip(file, file.read_bytes().index(b"relativity"))
    done = citadel("check", index, "--deep", code=3)
    assert "--repair --yes`: repair keeps 2 documents and loses 1: d1" in done.out
    assert (
        "loses 1: d1; nothing was changed: repeat it with --yes"
        in citadel("check", index, "--repair", code=3).err
    )
    repaired = citadel("check", index, "--repair", "--yes").out
    assert "lost: d1" in repaired.splitlines()
    assert "is whole: 2 documents" in repaired


def test_repair_with_a_model_that_is_not_installed(
    tmp_path: Path, corpus: Path, citadel: Citadel, tiny_model: ModelFolder
) -> None:
    index, model = tmp_path / "own", tiny_model()
    citadel("index", corpus, index, "--model", model)
    (file,) = index.glob("seg-*")
    flip(file, file.stat().st_size // 2)
    advice = "rebuilt only with the model"
    assert advice in citadel("check", index, "--deep", code=3).out
    assert advice in citadel("check", index, "--repair", "--yes", code=4).err
    error = citadel("check", index, "--repair", "--model", tiny_model("none"), code=4).err
    assert "this model's fingerprint is" in error
    assert "keeps all 3 documents" in citadel("check", index, "--deep", "--model", model, code=3).out
    assert "is whole: 3 documents" in citadel("check", index, "--repair", "--model", model).out


def test_damage_is_reported_without_advice_to_run_the_same_command(index: Path, citadel: Citadel) -> None:
    (file,) = index.glob("seg-*")
    flip(file, file.stat().st_size // 2)
    assert "citadel check" not in citadel("check", index, "--deep", code=3).err


def test_deep_reports_damage_of_the_previous_generation(index: Path, citadel: Citadel) -> None:
    citadel("add", index, "-", stdin=b'{"id": "d4", "text": "fourth"}\n')
    older = sorted(index.glob("gen.*"))[-2]
    flip(older, 5)
    done = citadel("check", index, "--deep")
    assert f"generation {int(older.suffix[1:])}, which a repair could return to, is damaged" in done.err
