"""The page of recipes is what its command makes, and has every recipe."""

from pathlib import Path

import pytest
import yaml

from densecal.training.config import load_config, recipes

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/recipes.md"


def test_the_page_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs/tools"))
    from make_recipes import markdown  # type: ignore[import-not-found]

    assert PAGE.read_text(encoding="utf-8") == markdown(), "run: python docs/tools/make_recipes.py"


@pytest.mark.parametrize("name", recipes())
def test_a_recipe_copied_from_the_page_is_that_recipe(name: str, tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {name}\n")[1].split("```")[1].removeprefix("yaml\n")
    assert set(yaml.safe_load(text)) >= {"data", "method", "optim"}
    (tmp_path / "my.yaml").write_text(text, encoding="utf-8")
    assert load_config(str(tmp_path / "my.yaml")) == load_config(name)


def test_the_table_of_the_page_says_what_a_recipe_trains() -> None:
    rows = {
        line.split("`")[1]: line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| [`")
    }
    assert set(rows) == set(recipes())
    for cell in ("paper-unet, resnet50", "384", "`aslp-mc`", "30 + 30", "10"):
        assert f"| {cell} |" in rows["sod-paper"]
