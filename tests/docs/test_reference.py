"""The reference pages say what the code does."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def load_generator() -> ModuleType:
    """docs/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", load_generator().PAGES)
def test_page_is_current(name: str) -> None:
    """Each generated page is what `python docs/generate.py` writes now."""
    assert (DOCS / "reference" / name).read_text(encoding="utf-8") == load_generator().PAGES[name]()
