"""Packs: measurement files of one collection in a few `.tar.xz` archives, for version control."""

from __future__ import annotations

import atexit
import io
import lzma
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from citadel.errors import InputError

SUFFIX = ".tar.xz"
RUN_SUFFIX = ".run.xz"
MAX_RUN_BYTES = 980_000  # per pack; runs are already compressed, so a pack is about as large
MAX_UNPACKED_BYTES = 256 << 20  # per pack


def write_packs(folder: str | os.PathLike[str], out: str | os.PathLike[str]) -> list[Path]:
    """Pack every sub-folder of a folder; equal files give equal packs.

    NAME.tar.xz holds the figures of sub-folder NAME, NAME-runs-1.tar.xz and so on its runs.
    """
    written = []
    for subfolder in sorted(path for path in Path(folder).iterdir() if path.is_dir()):
        files = sorted(path for path in subfolder.rglob("*") if path.is_file())
        figures = [file for file in files if not file.name.endswith(RUN_SUFFIX)]
        runs = [file for file in files if file.name.endswith(RUN_SUFFIX)]
        packs = {subfolder.name: figures} if figures else {}
        packs |= {f"{subfolder.name}-runs-{number}": group for number, group in enumerate(_groups(runs), 1)}
        written += [
            write_pack(Path(out, name + SUFFIX), group, Path(folder)) for name, group in packs.items()
        ]
    return written


def _groups(files: Sequence[Path]) -> Iterator[list[Path]]:
    """Split files into groups of at most MAX_RUN_BYTES, at least one file each."""
    group: list[Path] = []
    for file in files:
        if group and sum(each.stat().st_size for each in [*group, file]) > MAX_RUN_BYTES:
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def write_pack(target: Path, files: Sequence[Path], root: Path) -> Path:
    """Write one pack; names are relative to `root`, times and owners are left out."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for file in files:
            entry = tarfile.TarInfo(file.relative_to(root).as_posix())
            content = file.read_bytes()
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME))
    return target


def unpack(folder: str | os.PathLike[str], out: str | os.PathLike[str]) -> None:
    """Unpack every pack of a folder; existing files are kept."""
    for pack in packs_in(folder):
        try:
            with tarfile.open(pack, "r:xz") as archive:
                _extract_new(archive, pack, Path(out))
        except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
            raise InputError(
                f"not a readable pack ({error}): pack the measurements again", str(pack)
            ) from error


def _extract_new(archive: tarfile.TarFile, pack: Path, out: Path) -> None:
    total = 0
    for entry in archive:
        total += entry.size
        if not entry.isfile() or total > MAX_UNPACKED_BYTES:
            limit = MAX_UNPACKED_BYTES >> 20
            raise InputError(
                f"{entry.name}: a pack holds regular files of at most {limit} MiB in total", str(pack)
            )
        if not (out / entry.name).exists():
            archive.extract(entry, out, filter="data")


def packs_in(folder: str | os.PathLike[str]) -> list[Path]:
    """List the packs directly in a folder, sorted by name."""
    return sorted(path for path in Path(folder).glob(f"*{SUFFIX}") if path.is_file())


def unpacked(folder: str | os.PathLike[str]) -> Path:
    """Unpack a folder's packs into a temporary folder; return the folder itself if it has none.

    The temporary folder is removed when the process ends.
    """
    packs = packs_in(folder)
    if not packs:
        return Path(folder)
    return _unpacked(os.path.abspath(folder), tuple((pack.name, pack.stat().st_mtime_ns) for pack in packs))


@cache
def _unpacked(folder: str, _versions: tuple[tuple[str, int], ...]) -> Path:
    scratch = tempfile.mkdtemp(prefix="citadel-packs-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    shutil.copytree(folder, scratch, dirs_exist_ok=True, ignore=shutil.ignore_patterns(f"*{SUFFIX}"))
    unpack(folder, scratch)
    return Path(scratch)
