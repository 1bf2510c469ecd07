"""Print how much disk space each extra needs, measured on the packages installed here."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGE = "citadel-ir"
DEVELOPMENT = {
    "bench",
    "dev",
    "docs",
    "frameworks",
    "fuzz",
    "notebooks",
    "oracle",
    "peers",
    "test",
}  # extras that users do not install


def requirements(name: str, extras: Iterable[str]) -> dict[str, set[str]]:
    """All packages that a package needs, with their extras; those not installed too."""
    needed: dict[str, set[str]] = {}
    waiting = [(canonicalize_name(name), frozenset(extras))]
    while waiting:
        package, chosen = waiting.pop()
        if package in needed and chosen <= needed[package]:
            continue
        needed.setdefault(package, set()).update(chosen)
        for line in _requires(package):
            requirement = Requirement(line)
            if requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in chosen | {""}
            ):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return needed


def _requires(package: str) -> list[str]:
    try:
        return metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        return []


def installed_bytes(package: str) -> int | None:
    """Bytes of the files of a package; None if it is not installed."""
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return None
    paths = (Path(str(file.locate())) for file in files if file.suffix != ".pyc")
    return sum(path.stat().st_size for path in paths if path.is_file())


def extras() -> list[str]:
    """The extras of the package that users install."""
    known = metadata.metadata(PACKAGE).get_all("Provides-Extra") or []
    return sorted(set(known) - DEVELOPMENT)


def rows() -> Iterable[tuple[str, int, float, list[str]]]:
    """Extra, further packages, their megabytes, and those that are missing here."""
    core = requirements(PACKAGE, ()).keys()
    for extra in ["", *extras()]:
        more = requirements(PACKAGE, [extra] if extra else ()).keys() - (core if extra else {PACKAGE})
        sizes = {package: installed_bytes(package) for package in more - {PACKAGE}}
        missing = sorted(package for package, size in sizes.items() if size is None)
        yield extra, len(sizes), sum(size or 0 for size in sizes.values()) / 1e6, missing


def main() -> None:
    """Print the table."""
    print("| extra | packages | MB |\n| --- | ---: | ---: |")
    for extra, count, megabytes, missing in rows():
        note = f" (not installed here: {', '.join(missing)})" if missing else ""
        print(f"| {f'`[{extra}]`' if extra else 'the core needs'} | {count} | {megabytes:,.0f}{note} |")


if __name__ == "__main__":
    main()
