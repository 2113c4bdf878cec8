"""Write docs/settings.md, the reference of every setting of `densecal train`: python docs/tools/make_settings.py."""

from pathlib import Path

from densecal.training.settings import markdown

PAGE = Path(__file__).parents[1] / "settings.md"

if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
    print(PAGE)
