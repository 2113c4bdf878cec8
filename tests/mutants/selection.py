"""Which mutants are made: a seeded sample, spread over the modules that calculate."""

import random
from fnmatch import fnmatch
from pathlib import Path

from tests.mutants.changes import Mutant, mutants

CORE = (
    "labels.py",
    "rng.py",
    "metrics/*.py",
    "posthoc/*.py",
    "methods/*.py",
    "data/augment.py",
    "data/informationless.py",
    "data/cache_folder.py",
    "data/packed.py",
    "data/splits.py",
    "io/images.py",
    "io/masks.py",
    "io/pairs.py",
    "evaluation/record.py",
    "evaluation/findings.py",
    "evaluation/worker.py",
    "evaluation/totals.py",
    "prediction/tiles.py",
    "training/checkpoint.py",
    "training/loop.py",
    "training/run_folder.py",
    "training/schedule.py",
    "training/averaging.py",
    "models/dropout.py",
    "prediction/ensembles.py",
)
"""The modules that are mutated, relative to src/densecal; `*` matches folders too."""


def modules(package: Path, patterns: tuple[str, ...] = CORE) -> dict[str, str]:
    """Return the text of the modules of a package that match a pattern, by name."""
    names = sorted(path.relative_to(package).as_posix() for path in package.rglob("*.py"))
    kept = [name for name in names if _matches(name, patterns)]
    return {name: (package / name).read_text(encoding="utf-8") for name in kept}


def unmatched(package: Path, patterns: tuple[str, ...]) -> list[str]:
    """Return the patterns that match no module, because it was moved or the pattern is mistyped."""
    return [pattern for pattern in patterns if not modules(package, (pattern,))]


def sample(sources: dict[str, str], count: int, seed: int) -> list[Mutant]:
    """Draw the same mutants for the same source, count and seed; those of a module do not depend on other modules."""
    found = {name: mutants(name, source) for name, source in sources.items()}
    shares = quotas({name: len(sites) for name, sites in found.items()}, count)
    chosen: list[Mutant] = []
    for name, sites in found.items():
        picked = random.Random(f"{seed} {name}").sample(sites, len(sites))[: shares[name]]
        chosen += sorted(picked, key=lambda mutant: mutant.start)
    return chosen


def quotas(sizes: dict[str, int], count: int) -> dict[str, int]:
    """Return how many of `count` each module gets: by its number of sites, but at most twice an equal share.

    >>> quotas({"a": 1000, "b": 50, "c": 50, "d": 0}, 12)
    {'a': 6, 'b': 3, 'c': 3, 'd': 0}
    """
    cap = -(-2 * count // max(len(sizes), 1))
    shares = dict.fromkeys(sizes, 0)
    for _ in range(min(count, sum(sizes.values()))):
        open_ = [name for name in sizes if shares[name] < min(cap, sizes[name])]
        open_ = open_ or [name for name in sizes if shares[name] < sizes[name]]
        # the module that has the fewest for its size; the first of several
        chosen = max(open_, key=lambda name: sizes[name] / (shares[name] + 1))
        shares[chosen] += 1
    return shares


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)
