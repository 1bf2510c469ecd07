"""Add a built site to a folder with one site per version: `… docs_site/versions.py SITE FOLDER NAME`.

NAME is a tag, of which the first two numbers count (v0.1.2 → 0.1), or another name, such as dev. The folder
gets versions.json, which the menu of versions reads, and an index.html that leads to the newest release.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

_REDIRECT = """<!doctype html>
<meta charset="utf-8">
<title>citadel</title>
<meta http-equiv="refresh" content="0; url={0}/">
<a href="{0}/">citadel {0}</a>
"""


def version_of(name: str) -> str:
    """The version of a tag; other names are their own.

    >>> version_of("v0.12.3"), version_of("dev")
    ('0.12', 'dev')
    """
    tag = re.fullmatch(r"v(\d+\.\d+)\.\d+", name)
    version = tag[1] if tag else name
    if not re.fullmatch(r"\w[\w.-]*", version):
        raise SystemExit(f"{name!r} cannot be the name of a folder: give a tag such as v0.1.0, or dev")
    return version


def order(version: str) -> tuple[int, ...]:
    """Sort key of versions, releases by number and before other names.

    >>> sorted(["0.9", "dev", "0.10"], key=order, reverse=True)
    ['0.10', '0.9', 'dev']
    """
    return tuple(map(int, version.split("."))) if re.fullmatch(r"\d+\.\d+", version) else ()


def add(site: Path, folder: Path, name: str) -> list[str]:
    """Copy a site into the folder, in place of an earlier one of its version; return all versions."""
    target = folder / version_of(name)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(site, target)
    versions = sorted((path.parent.name for path in folder.glob("*/index.html")), key=order, reverse=True)
    entries = [{"version": version, "title": version, "aliases": []} for version in versions]
    (folder / "versions.json").write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    (folder / "index.html").write_text(_REDIRECT.format(versions[0]), encoding="utf-8")
    (folder / ".nojekyll").touch()
    return versions


if __name__ == "__main__":
    print(*add(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
