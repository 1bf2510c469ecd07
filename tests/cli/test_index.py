"""`citadel index`: corpus formats, resumed builds and bad lines."""

from __future__ import annotations

import gzip
import lzma
import os
from pathlib import Path

import pytest
from backports import zstd

from citadel import Index
from tests.cli.conftest import Citadel, write_jsonl


def ids(path: Path, query: str) -> list[str]:
    with Index.open(path) as index:
        return [hit.id for hit in index.searcher().search(query)]


def test_build_prints_the_number_of_documents(corpus: Path, tmp_path: Path, citadel: Citadel) -> None:
    done = citadel("index", corpus, tmp_path / "idx")
    assert done.out == f"{tmp_path}/idx: 3 documents\n"
    assert done.err == ""
    assert ids(tmp_path / "idx", "evolution") == ["d2"]


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress), (".zst", zstd.compress)]
)
def test_compressed_corpora(suffix: str, pack, corpus: Path, tmp_path: Path, citadel: Citadel) -> None:
    packed = tmp_path / f"corpus.jsonl{suffix}"
    packed.write_bytes(pack(corpus.read_bytes()))
    citadel("index", packed, tmp_path / "idx", "--commit-bytes", 50)
    assert ids(tmp_path / "idx", "physics") == ["d3", "d1"]  # the shorter one first


def test_beir_folder(corpus: Path, tmp_path: Path, citadel: Citadel) -> None:
    citadel("index", tmp_path, tmp_path / "idx")
    assert ids(tmp_path / "idx", "gravity") == ["d3"]


def test_tsv_by_name_and_by_option(tmp_path: Path, citadel: Citadel) -> None:
    (tmp_path / "corpus.tsv").write_text("d1\tred fox\nd2\tTitle\tblue fox\n")
    (tmp_path / "corpus.txt").write_text("d1\tred fox\n")
    citadel("index", tmp_path / "corpus.tsv", tmp_path / "one")
    citadel("index", tmp_path / "corpus.txt", tmp_path / "two", "--format", "tsv")
    assert ids(tmp_path / "one", "title") == ["d2"]
    assert ids(tmp_path / "two", "red") == ["d1"]
    assert (
        "does not tell the format"
        in citadel("index", tmp_path / "corpus.txt", tmp_path / "three", code=4).err
    )


def test_standard_input_cannot_resume(corpus: Path, tmp_path: Path, citadel: Citadel) -> None:
    done = citadel("index", "-", tmp_path / "idx", stdin=corpus.read_bytes())
    assert "cannot resume" in done.err
    assert ids(tmp_path / "idx", "gravity") == ["d3"]
    again = citadel("index", "-", tmp_path / "idx", stdin=corpus.read_bytes(), code=4)
    assert "standard input cannot be resumed" in again.err
    citadel("index", "-", tmp_path / "idx", "--overwrite", stdin=b'{"id": "d9", "text": "gravity"}')
    assert ids(tmp_path / "idx", "gravity") == ["d9"]


def test_missing_corpus_creates_no_index(tmp_path: Path, citadel: Citadel) -> None:
    assert "cannot be opened" in citadel("index", tmp_path / "no.jsonl", tmp_path / "idx", code=4).err
    assert not (tmp_path / "idx").exists()


def test_settings_reach_the_index(corpus: Path, tmp_path: Path, citadel: Citadel) -> None:
    citadel(
        "index",
        corpus,
        tmp_path / "idx",
        "--analyser",
        "plain",
        "--k1",
        "1.5",
        "--b",
        "0.7",
        "--memory",
        "8MiB",
    )
    settings = Index.open(tmp_path / "idx").settings
    assert (settings.analyser, settings.k1, settings.b) == ("plain", 1.5, 0.7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--analyser", "klingon"], "unknown analyser 'klingon'"),
        (["--tau", "0.5"], "--tau is for a corpus of vectors, an .npz file, or for a --model"),
        (["--router", "dynamic"], "router 'dynamic' needs vectors"),
        (["--b", "2"], "b"),
        (["--k1", "nan"], "k1"),
    ],
)
def test_invalid_settings(
    options: list[str], message: str, corpus: Path, tmp_path: Path, citadel: Citadel
) -> None:
    assert message in citadel("index", corpus, tmp_path / "idx", *options, code=2).err
    assert not (tmp_path / "idx").exists()


# ---- repeated commands -------------------------------------------------------------------------------------


def test_finished_build_is_reported(corpus: Path, index: Path, citadel: Citadel) -> None:
    before = sorted(path.name for path in index.iterdir())
    done = citadel("index", corpus, index)
    assert "already finished" in done.out and "3 documents" in done.out
    assert sorted(path.name for path in index.iterdir()) == before


@pytest.mark.parametrize("form", ["relative", "symlink", "folder"])
def test_corpus_is_identified_by_its_real_path(
    form: str, corpus: Path, index: Path, citadel: Citadel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(corpus.parent)
    os.symlink(corpus, corpus.parent / "link.jsonl")
    given = {"relative": "./corpus.jsonl", "symlink": "link.jsonl", "folder": "."}[form]
    assert "already finished" in citadel("index", given, index).out


def test_explicit_defaults_equal_implicit_ones(corpus: Path, index: Path, citadel: Citadel) -> None:
    again = citadel(
        "index", corpus, index, "--model", "bm25", "--analyser", "english", "--k1", "0.9", "--threads", "1"
    )
    assert "already finished" in again.out


@pytest.mark.parametrize("options", [["--k1", "1.2"], ["--analyser", "plain"], ["--format", "jsonl"]])
def test_other_settings_are_refused(options: list[str], corpus: Path, index: Path, citadel: Citadel) -> None:
    name = options[0].removeprefix("--")
    assert (
        f"this index was built with {name} its default, not {options[1]}"
        in citadel("index", corpus, index, *options, code=4).err
    )


def test_another_corpus_needs_overwrite(tmp_path: Path, index: Path, citadel: Citadel) -> None:
    other = write_jsonl(tmp_path / "other.jsonl", [{"id": "d9", "text": "gravity"}])
    assert "was built from" in citadel("index", other, index, code=4).err
    assert ids(index, "gravity") == ["d3"]
    citadel("index", other, index, "--overwrite")
    assert ids(index, "gravity") == ["d9"]


def test_index_made_in_python_is_refused(tmp_path: Path, corpus: Path, citadel: Citadel) -> None:
    with Index.create(tmp_path / "mine") as mine:
        mine.add([{"id": "x", "text": "gravity"}])
        mine.commit()
    assert "`citadel index` did not build" in citadel("index", corpus, tmp_path / "mine", code=4).err
    assert ids(tmp_path / "mine", "gravity") == ["x"]


def test_changed_corpus_is_refused(corpus: Path, index: Path, citadel: Citadel) -> None:
    text = corpus.read_text()
    corpus.write_text(text.replace("Darwin", "Wallace")[: len(text)])
    assert "the corpus has changed" in citadel("index", corpus, index, code=4).err
    corpus.write_text(text[:50])
    assert "the corpus has changed" in citadel("index", corpus, index, code=4).err
    corpus.write_text(text + '{"id": "d4", "text": "more"}\n')
    assert "the corpus has grown" in citadel("index", corpus, index, code=4).err
    corpus.write_text(text)
    citadel("index", corpus, index)


def test_overwrite_replaces_a_damaged_index(corpus: Path, index: Path, citadel: Citadel) -> None:
    for path in index.glob("gen.*"):
        path.write_bytes(b"{}")
    citadel("index", corpus, index, code=3)
    citadel("index", corpus, index, "--overwrite")
    citadel("check", index, "--deep")
    assert ids(index, "gravity") == ["d3"]


# ---- bad lines ---------------------------------------------------------------------------------------------


def test_build_resumes_after_the_bad_line_is_fixed(tmp_path: Path, citadel: Citadel) -> None:
    good = [f'{{"id": "d{n}", "text": "word{n}"}}\n' for n in range(4)]
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join([*good[:3], "oops\n", good[3]]))
    command = ["index", corpus, tmp_path / "idx", "--commit-bytes", 1]
    assert f"{corpus}:4: not valid JSON" in citadel(*command, code=4).err
    citadel("check", tmp_path / "idx", "--deep")
    corpus.write_text("".join(good))
    done = citadel(*command)
    assert "resuming after line 3" in done.err
    assert "4 documents" in done.out


def test_build_resumes_with_skip(tmp_path: Path, citadel: Citadel) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"id": "1", "text": "a"}\noops\n{"id": "2", "text": "b"}\n')
    citadel("index", corpus, tmp_path / "idx", "--commit-bytes", 1, code=4)
    done = citadel("index", corpus, tmp_path / "idx", "--on-error", "skip")
    assert done.out.endswith("2 documents, 1 skipped\n")


def test_skipped_lines_are_counted_and_the_first_are_shown(tmp_path: Path, citadel: Citadel) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("oops\n" * 12 + '{"id": "1", "text": "a"}\n{"id": "1", "text": "b"}\n')
    done = citadel("index", corpus, tmp_path / "idx", "--on-error", "skip")
    assert done.out.endswith("1 document, 1 replaced, 12 skipped\n")
    assert f"citadel: skipped: {corpus}:1: not valid JSON" in done.err
    assert "citadel: skipped: 2 more" in done.err
    assert Index.open(tmp_path / "idx").counts == {"skipped": 12, "replaced": 1}
    assert "already finished" in citadel("index", corpus, tmp_path / "idx", "--on-error", "skip").out


@pytest.mark.parametrize("commits", [[], ["--commit-bytes", 1]])
@pytest.mark.parametrize(
    ("lines", "reason"),
    [("", "no documents: check"), ("\n\n", "no documents: check"), ("oops\n" * 3, "all 3 were skipped")],
)
def test_corpus_without_documents_is_an_error(
    lines: str, reason: str, commits: list[object], tmp_path: Path, citadel: Citadel
) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(lines)
    command = ["index", corpus, tmp_path / "idx", "--on-error", "skip", *commits]
    for _ in range(2):  # also when repeated
        assert reason in citadel(*command, code=4).err
    corpus.write_text(lines + '{"id": "d1", "text": "a"}\n')
    assert "1 document" in citadel(*command).out


def test_adding_no_documents_is_an_error(index: Path, tmp_path: Path, citadel: Citadel) -> None:
    (tmp_path / "none.jsonl").write_text("\n")
    before = Index.open(index).generation
    done = citadel("add", index, tmp_path / "none.jsonl", code=4)
    assert (
        done.err
        == f"citadel: {tmp_path}/none.jsonl: the corpus has no documents: check the file and its --format\n"
    )
    assert Index.open(index).generation == before


@pytest.mark.parametrize("name", ["thesis.txt", "thesis.tmp", "gen.txt"])
@pytest.mark.parametrize("options", [[], ["--overwrite"]])
def test_folder_with_other_files_is_refused(
    options: list[str], name: str, corpus: Path, tmp_path: Path, citadel: Citadel
) -> None:
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / name).write_text("mine")
    done = citadel("index", corpus, folder, *options, code=4)
    assert f"{name!r}" in done.err
    assert "name a new or an empty folder" in done.err
    assert [path.name for path in folder.iterdir()] == [name]


def test_foreign_file_in_an_index_is_kept(index: Path, corpus: Path, citadel: Citadel) -> None:
    (index / "thesis.tmp").write_text("mine")
    (index / "seg-0123.cit.tmp").write_text("of a killed writer")
    citadel("add", index, corpus)
    assert (index / "thesis.tmp").exists()
    assert not (index / "seg-0123.cit.tmp").exists()


def test_stats_show_the_document_store(index: Path, citadel: Citadel) -> None:
    (store,) = index.glob("docs-*.sqlite")
    lines = citadel("stats", index).out.splitlines()
    assert f"{store.stat().st_size:,}" in next(line for line in lines if "DOCUMENT_STORE" in line)


WITHOUT_IDS: list[dict[str, object]] = [
    {"text": "red fox"},
    {"text": "blue fox"},
    {"id": "d3", "text": "fox"},
    {"text": "red fox"},
]


def test_lines_without_ids_need_an_option(tmp_path: Path, citadel: Citadel) -> None:
    corpus = write_jsonl(tmp_path / "corpus.jsonl", WITHOUT_IDS)
    err = citadel("index", corpus, tmp_path / "idx", code=4).err
    assert "corpus.jsonl:1: no id: give `id` or `_id`, or --generate-ids" in err
    citadel("index", corpus, tmp_path / "idx", "--generate-ids")
    with Index.open(tmp_path / "idx") as index:
        assert len(index) == 3 and "d3" in index  # equal lines are one document
    citadel("add", tmp_path / "idx", corpus, "--generate-ids")
    with Index.open(tmp_path / "idx") as index:
        assert len(index) == 3
    assert "no id" in citadel("add", tmp_path / "idx", corpus, code=4).err


def test_resumed_build_generates_the_same_ids(tmp_path: Path, citadel: Citadel) -> None:
    corpus = write_jsonl(tmp_path / "corpus.jsonl", WITHOUT_IDS[:3])
    good = corpus.read_bytes()
    citadel("index", corpus, tmp_path / "whole", "--generate-ids")
    corpus.write_bytes(good[:-10] + b"\n")  # the last line is cut
    command = ("index", corpus, tmp_path / "idx", "--generate-ids", "--commit-bytes", 1)
    citadel(*command, code=4)
    corpus.write_bytes(good)
    assert "resuming after line 2" in citadel(*command).err
    with Index.open(tmp_path / "whole") as whole, Index.open(tmp_path / "idx") as resumed:
        assert list(resumed.ids()) == list(whole.ids())
    err = citadel("index", corpus, tmp_path / "idx", code=4).err
    assert "this index was built with generate-ids on, not its default" in err


@pytest.mark.parametrize("name", ["corpus.tsv", "vectors.npz"])
def test_generated_ids_are_for_jsonl(name: str, corpus: Path, index: Path, citadel: Citadel) -> None:
    (corpus.parent / name).write_text("d1\tred fox\n")
    err = citadel("add", index, corpus.parent / name, "--generate-ids", code=2).err
    assert "JSONL" in err
