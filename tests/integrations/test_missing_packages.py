"""An integration without its framework names the extra to install."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path

import pytest

import citadel
from conftest import FRAMEWORKS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "src" / "citadel" / "integrations"
EXTRAS = {"llama_index": "llama-index", "mcp_http": "mcp", "mcp_server": "mcp"}  # where the names differ
_PARTS = {
    "haystack_filters",
    "llama_index_filters",
    "mcp_results",
}  # imported by another module, which names the extra
MODULES = [name for name in FRAMEWORKS if (FOLDER / f"{name}.py").exists() and name not in _PARTS]


@pytest.mark.parametrize("name", MODULES)
def test_message_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    extra, module = EXTRAS.get(name, name), f"citadel.integrations.{name}"
    for loaded in [key for key in sys.modules if key.partition(".")[0] == FRAMEWORKS[name]]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, FRAMEWORKS[name], None)  # type: ignore[arg-type]
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(citadel.UsageError, match=rf"citadel-ir\[{extra}\]") as raised:
        importlib.import_module(module)
    assert isinstance(raised.value, ImportError)
    sys.modules.pop(module, None)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extra in extras


def test_every_integration_is_listed() -> None:
    plain = {"__init__", "store"}
    assert {path.stem for path in FOLDER.glob("*.py")} - plain <= set(FRAMEWORKS)
