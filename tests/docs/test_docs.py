"""The documentation holds: links lead somewhere, every page is reachable, Python blocks run."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name(page: Path) -> str:
    """A page by its path in the repository."""
    return str(page.relative_to(ROOT))


def without_code(text: str) -> str:
    """The prose alone: what looks like a link inside code is none."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


def links(page: Path) -> set[Path]:
    """The files a page links to."""
    return {(page.parent / target).resolve() for target, _ in LINK.findall(without_code(page.read_text())) if target}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file that exists."""
    assert [str(target) for target in links(page) if not target.exists()] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    """No page is an orphan."""
    reached: set[Path] = set()
    frontier = {ROOT / "README.md"}
    while frontier:
        page = frontier.pop()
        reached.add(page)
        frontier |= {target for target in links(page) if target.suffix == ".md"} - reached
    assert sorted(map(name, set(PAGES) - reached)) == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_blocks_compile(page: Path) -> None:
    """Every Python block is valid Python."""
    for language, block in FENCE.findall(page.read_text()):
        if language == "python":
            compile(block, name(page), "exec")
