"""The site that mkdocs builds holds every picture that its pages show, at which mkdocs itself does not look."""

import re
from pathlib import Path

import pytest
from mkdocs.config import load_config
from mkdocs.structure.files import get_files, set_exclusions

ROOT = Path(__file__).parents[2]


@pytest.mark.filterwarnings("ignore")
def test_every_picture_of_a_page_is_in_the_site():
    config = load_config(str(ROOT / "mkdocs.yml"))
    files = get_files(config)
    set_exclusions(files, config)
    kept = {file.src_uri for file in files if file.inclusion.is_included()}
    pages = [ROOT / "docs" / page for page in kept if page.endswith(".md")]
    shown = {
        (page.parent / target).resolve().relative_to(ROOT / "docs").as_posix()
        for page in pages
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    }
    assert len(shown) > 5
    assert shown <= kept
