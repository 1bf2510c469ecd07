"""Fuzz the text parsers with atheris: only InputError may be raised."""

from __future__ import annotations

import importlib.util
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("atheris") is None:
    pytest.skip("atheris is not installed: there is no wheel for every machine", allow_module_level=True)

NIGHT = os.environ.get("CITADEL_NIGHT") == "1"
SEED = int(os.environ.get("CITADEL_SEED") or random.randrange(1, 1 << 31))
SEEDS = {  # valid inputs of each parser
    "corpus": [
        b'{"id": "1", "text": "a"}',
        b'\xef\xbb\xbf{"_id": "d1", "title": "t", "text": "a \\u00e9", "metadata": {"n": [1.5, null]}}\r\n',
        b'{"id": 7, "text": "\\ud83e\\udd8a", "x": {"y": [[[{}]]]}}\n\n{"id": "7", "title": "b"}\n',
    ],
    "skip": [b"d1\ta", b"d1\tt\ta\n\nd2\tb\n"],
    "queries": [
        b'{"id": 1, "text": "a"}',
        b'{"_id": "1", "text": "a"}\n{"_id": "q2", "text": "\\ud83e\\udd8a"}\n',
    ],
    "run": [b"q1 Q0 d1 1 2.5 tag", b"q1 Q0 d1 1 2.5 tag\nq1 Q0 d2 2 1e-3 tag\n"],
    "qrels": [b"q1 0 d1 1", b"query-id\tcorpus-id\tscore\nq1\td1\t1\nq2 0 d2 0\n"],
}
WORDS = [
    *(
        "{}",
        "[]",
        r"\"id\"",
        r"\"_id\"",
        r"\"text\"",
        r"\"title\"",
        r"\"metadata\"",
        ": ",
        ", ",
        "null",
        "true",
        "NaN",
    ),
    *(
        "-Infinity",
        "1e999",
        r"\\ud800",
        r"\\u0000",
        r"\\u2028",
        r"\x00",
        r"\x09",
        r"\x0a",
        r"\x0d",
        r"\xff",
        r"\xc2\x85",
    ),
    *("[[[[[[[[", "99999999999999999999", "Q0", "nan"),
]
SECONDS = (200 if NIGHT else 30) // len(SEEDS)


def start(folder: Path, target: str) -> list[str]:
    """Write seeds and dictionary; return the arguments for them."""
    for name in ("found", "seeds"):
        (folder / name).mkdir()
    for number, seed in enumerate(SEEDS[target]):
        (folder / "seeds" / str(number)).write_bytes(seed)
    (folder / "words").write_text("".join(f'"{word}"\n' for word in WORDS))
    return [f"-dict={folder}/words", f"-artifact_prefix={folder}/", f"{folder}/found", f"{folder}/seeds"]


@pytest.mark.parametrize("target", SEEDS)
def test_parser_raises_only_input_errors(tmp_path: Path, target: str) -> None:
    # A child process inherits the peak memory of its parent, which may be large.
    memory = 1024 + resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    limits = [
        f"-max_total_time={SECONDS}",
        "-max_len=2048",
        "-timeout=10",
        f"-rss_limit_mb={memory}",
        f"-seed={SEED}",
    ]
    command = [
        sys.executable,
        str(Path(__file__).with_name("fuzz_text.py")),
        target,
        *limits,
        *start(tmp_path, target),
    ]
    here = os.environ | {"TMPDIR": str(tmp_path)}  # atheris exits before temporary files are removed
    process = subprocess.run(
        command, capture_output=True, timeout=SECONDS + 120, cwd=tmp_path, env=here, check=False
    )
    output = (process.stderr + process.stdout).decode(
        errors="replace"
    )  # atheris prints the traceback to stdout
    assert process.returncode == 0, f"seed {SEED}: {output[-3000:]}"
    assert "Done " in output, output[-3000:]
