"""The site that mkdocs builds holds every picture that its pages show, at which mkdocs itself does not look."""

import importlib.util
import re
from pathlib import Path

import pytest
import typer
from mkdocs.config import load_config
from mkdocs.structure.files import get_files, set_exclusions

from densecal.cli import app

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


def test_the_page_of_the_command_line_has_every_command_and_option():
    spec = importlib.util.spec_from_file_location("make_cli", ROOT / "docs/tools/make_cli.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.page()
    for path, command in module.commands(typer.main.get_command(app), "densecal"):
        section = text.split(f"\n## {path}\n")[1].split("\n## ")[0]
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden and parameter.name != "help":
                assert f"`{parameter.opts[0]}`" in section, (path, parameter.name)
