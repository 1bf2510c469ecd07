"""Build the documentation site: `python -m scripts.docs_site [FOLDER]`, in build/docs by default.

The folder gets the prepared pages (docs/), the configuration and the site (site/). Nothing is downloaded.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import citadel
from scripts.docs_site import api, tour
from scripts.docs_site.pages import OTHERS, ROOT, contents, prepare, site_path, sources

Nav = list[dict[str, object]]


def write_pages(folder: Path) -> None:
    """Write every page and picture of the site below `folder`."""
    for source in sources():
        path = folder / str(site_path(source))
        path.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            path.write_text(prepare(source.read_text(encoding="utf-8"), source), encoding="utf-8")
        else:
            shutil.copyfile(source, path)
    for name, text in tour.pages():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "api").mkdir()
    for title, text in api.pages():
        (folder / api_path(title)).write_text(text, encoding="utf-8")


def api_path(title: str) -> str:
    """The path of a page of the API reference."""
    return f"api/citadel-{title.lower().replace(' ', '-')}.md"  # api/index.md would be the section's own page


def navigation() -> Nav:
    """The pages in the order of docs/README.md, then the tour, the API and the pages outside docs/."""
    nav: Nav = [{"Documentation": "index.md"}]
    for section, links in contents((ROOT / "docs" / "README.md").read_text(encoding="utf-8")):
        entries = [{title: target} for title, target in links]
        nav += [{section: entries}] if section else entries
        if not section:
            nav.append({"Why this document": "tour.md"})
    nav.append({"API": [{title: api_path(title)} for title, _ in api.pages()]})
    nav.append({"Project": [{heading(ROOT / name): path} for name, path in OTHERS.items()]})
    return nav


def heading(page: Path) -> str:
    """The first heading of a page."""
    return page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def toml(value: object) -> str:
    """A value of the navigation as TOML.

    >>> toml([{"Guides": [{"Serve": "serve.md"}]}])
    '[{ "Guides" = [{ "Serve" = "serve.md" }] }]'
    """
    if isinstance(value, list):
        return f"[{', '.join(toml(item) for item in value)}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{toml(key)} = {toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def build(folder: Path, *, versions: bool = False) -> int:
    """Write the pages and run Zensical; return its exit code."""
    shutil.rmtree(folder, ignore_errors=True)
    write_pages(folder / "docs")
    (folder / "docs" / "site.css").write_bytes((Path(__file__).parent / "site.css").read_bytes())
    config = (Path(__file__).parent / "zensical.toml").read_text(encoding="utf-8")
    config = config.replace("nav = []", f"nav = {toml(navigation())}")
    config = config.replace("VERSION", citadel.__version__)
    if versions:
        config += '\n[project.extra.version]\nprovider = "mike"\n'
    (folder / "zensical.toml").write_text(config, encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "-f", "zensical.toml"]
    code = subprocess.run(command, cwd=folder, check=False).returncode
    if code == 0:  # pages that are opened as files, without a server, load the index as a script
        index = (folder / "site" / "search.json").read_text(encoding="utf-8")
        (folder / "site" / "search.js").write_text(f"var __index = {index};\n", encoding="utf-8")
    return code


def main() -> int:
    """Build into the folder given as argument; `--versions` adds the menu of versions."""
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    folder = Path(arguments[0] if arguments else ROOT / "build" / "docs").resolve()
    return build(folder, versions="--versions" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
