"""Every command in README.md and docs is run as it is printed, on small data laid out as its page takes for granted.

What cannot be run in a test (other people's data, hours, several machines) is listed in `ONLY_PARSED` with the reason;
the command line still has to accept it.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import typer
from PIL import Image

import densecal.benchmark.plan
import densecal.demo
import densecal.training.config
from densecal.cli import app
from densecal.data.scenes import generate, write
from densecal.evaluation.folders import evaluate
from densecal.evaluation.ood import evaluate_ood
from densecal.evaluation.worker import Settings
from densecal.io.atomic import write_json
from densecal.io.images import save_png
from densecal.io.outputs import software
from densecal.methods import create
from densecal.prediction.preprocess import PRESETS
from tests.onnx_files import conv_onnx, linear
from tests.running import run

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if "results/" not in page.as_posix().removeprefix(ROOT.as_posix())]

ONLY_PARSED = {
    "predict hf:": "needs the network; tests/prediction/test_named_models.py has tiny local models",
    "predict torchvision:": "needs the network; tests/prediction/test_named_models.py has tiny local models",
    "benchmark examples/benchmark_duts.yaml": "trains eighteen networks on DUTS-TR",
    "benchmark examples/benchmark_backbones.yaml": "trains eight large networks on DUTS-TR",
    "benchmark examples/study_": "trains dozens of networks",
    "reproduce table": "tests/reproduce runs every item; here the pages' data sets are too few",
    "benchmark docs/results/": "trains networks on DUTS-TR or CamVid for hours on a CPU",
    'train my.yaml "engine.loggers=[mlflow': "needs MLflow; tests/integrations/test_loggers.py has a stand-in",
}
"""Beginnings of commands, and why they are not run."""
ON_A_CLUSTER = "--engine ray"
"""Commands with these options are not run either: tests/integrations/test_ray.py has a cluster."""
SLOW = ("demo", "benchmark examples/benchmark_scenes.yaml", "report runs/", "export ")
"""Run by `make test-slow`."""
FOUND_WRONG = ("data check", "check ")
"""May answer with exit code 1: the generated sets have fewer images than the published ones they are called after, and
their maps are no better calibrated than they happen to be."""
OTHERS = {
    "npm": "needs the network; tests/docs/test_published.py runs them where it can",
    "tar": "unpacks what npm fetched",
    "make": "`demo` is the quick start's command, run below; the others are run by CI",
    "pip": "needs the network",
    "docker": "needs a daemon and a registry; tests/test_project_files.py reads the Dockerfile",
    "python": "scripts; those of docs/tools and examples have tests of their own",
    "torchrun": "evaluate and predict are run below; training by several is tests/test_output_folders.py's",
    "srun": "needs SLURM; here its command is parsed",
    "pytest": "the tests themselves",
}
"""Programs that are not ours, and what becomes of their commands."""
SMALL = [
    "data.size=32", "optim.batch=2", "optim.lr=0.01", "model.arch=unet", "model.encoder=test_efficientnet",
    "model.weights=null", "data.cache=packed", "engine.devices=1", "engine.precision=32-true", "engine.loggers=[]",
]  # fmt: skip
"""Every training of the pages, made small."""


def blocks(text: str) -> list[str]:
    """Fenced blocks that are not of another language than the shell's, and indented ones."""
    # all fences are paired, those of other languages too: the end of one looks like the beginning of the next
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
    fenced = [content for language, content in fence.findall(text) if language in ("", "sh", "bash", "console")]
    return fenced + re.findall(r"(?:^    .*\n)+", fence.sub("", text), flags=re.MULTILINE)


def commands(page: Path) -> list[str]:
    """The commands of a page in order, without prompts, comments and synopses; then those within its sentences."""
    text = page.read_text(encoding="utf-8")
    found = []
    for block in blocks(text):
        for line in block.replace("\\\n", " ").splitlines():
            words = line.strip().removeprefix("$ ")
            if words.split(" ")[0] in ("densecal", *OTHERS) and not re.search(r" \[-|RUN_OR|PRED_DIR| ARCH ", words):
                found.append(re.sub(r"\s+# .*$", "", words))
    return found + re.findall(r"`(densecal [^`\n]+ --out [^`\n]+)`", text)


EVERY = [(page, command) for page in PAGES for command in commands(page)]
OURS = [(page, command.removeprefix("densecal ")) for page, command in EVERY if command.startswith("densecal ")]


def starts(command: str, beginnings: Iterable[str]) -> bool:
    return command.startswith(tuple(beginnings))


def name_of(value: object) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else str(value)[:70]


# ------------------------------------------------------------------ the data that the pages take for granted


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos, masks, maps and published sets under the names that the pages use."""
    root = tmp_path_factory.mktemp("pages")
    write(generate(6, 48, 0), root / "scenes")
    write(generate(20, 48, 1), root / "val")  # risk control at 0.05 needs 19
    shutil.copytree(root / "val/masks", root / "val-masks")
    soft_maps(root / "val/masks", root / "val-maps")
    images, masks = root / "scenes/images", root / "scenes/masks"
    for name in ("photos", "textures"):
        shutil.copytree(images, root / name)
    for name in ("masks", "masks/ecssd", "dataset-masks/ECSSD"):
        shutil.copytree(masks, root / name, dirs_exist_ok=True)
    maps = ("maps", "maps/ecssd", "maps/textures", "test-maps", "maps-of-textures")
    for name in (*maps, "published-maps/ours/ECSSD", "published-maps/theirs/ECSSD"):
        soft_maps(masks, root / name)
    for i, path in enumerate(sorted((root / "val-masks").glob("*.png"))):
        for kind in ("maps", "masks"):
            (root / f"{kind}-{i % 2}").mkdir(exist_ok=True)
            shutil.copy(root / f"val-{kind}" / path.name, root / f"{kind}-{i % 2}")
    class_maps(root)
    volumes(root)
    for name in ("DUTS-TR", "DUTS-TE", "ECSSD", "data/DUTS-TR"):
        write(generate(6, 48, len(name)), root / name)
    for name in ("train", "val"):
        for part in (name, f"{name}annot"):
            source = root / "labels" if part != name else images
            shutil.copytree(source, root / "data/CamVid" / part)
    for name in ("ecssd.zip", "duts-tr-0.zip", "duts-tr-1.zip"):
        zipped(images, masks, root / name, name[:-4])
    (root / "my.yaml").write_text(yaml_of(ROOT / "docs/howto/own-data.md"), encoding="utf-8")
    shutil.copytree(ROOT / "examples", root / "examples")
    for preset in ("u2net", "isnet"):
        salient(root, preset)
    benchmark_results(root, root / "bench")
    lines = [f"{path.name},patient {i // 2}\n" for i, path in enumerate(sorted(masks.glob("*.png")))]
    (root / "patients.csv").write_text("".join(lines), encoding="utf-8")
    return root


def benchmark_results(root: Path, out: Path) -> None:
    """A finished benchmark of two methods, each on photographs and on textures."""
    settings = Settings(entropy=True)
    inside = evaluate(root / "maps/ecssd", root / "masks/ecssd", dataset="validation", workers=1, settings=settings)
    outside = evaluate_ood(root / "maps/textures", dataset="textures", workers=1)
    records = [inside.record.to_json(), outside.record.to_json()]
    for label in ("bce", "aslp-mc"):
        evaluations = [{**record, "calibrator": name} for name in ("none", "temperature") for record in records]
        write_json(
            out / "cells" / label / "seed-0/result.json", {"label": label, "seed": 0, "evaluations": evaluations}
        )
    matrix = {"seeds": [0], "datasets": [{"name": "textures", "ood": True}]}
    write_json(out / "results.json", {"matrix": matrix, "rows": []})


def salient(root: Path, preset: str) -> None:
    """A network with the inputs of a published one, which finds foreground by its colour, as well as that goes."""
    steps = PRESETS[preset]
    assert steps.size is not None
    pixels, truth = [], []
    for path in sorted((root / "val/images").iterdir()):
        pixels.append(steps.input(np.asarray(Image.open(path).convert("RGB")), (48, 48)).reshape(-1, 3))
        truth.append(np.asarray(Image.open(root / "val/masks" / path.name)).ravel() > 0)
    x = np.concatenate([np.concatenate(pixels), np.ones((len(pixels) * 48**2, 1))], axis=1)
    weights = np.linalg.lstsq(x, 2.0 * np.concatenate(truth) - 1, rcond=None)[0].astype(np.float32)
    file = root / {"u2net": "u2netp.onnx", "isnet": "isnet.onnx"}[preset]
    linear(file, size=steps.size, batch=1, weights=weights[:3], bias=weights[3])


def soft_maps(masks: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for seed, path in enumerate(sorted(masks.glob("*.png"))):
        noise = np.random.default_rng(seed).normal(0, 0.25, (48, 48))
        p = np.clip(0.8 * (np.asarray(Image.open(path)) > 0) + 0.1 + noise, 0.001, 0.999)
        save_png(out / path.name, np.rint(p * 65535).astype(np.uint16), software("predict"))


def class_maps(root: Path) -> None:
    """Softmax maps of 11 classes, and labels with void pixels, 11."""
    rng = np.random.default_rng(0)
    for name in ("softmax", "labels"):
        (root / name).mkdir()
    for path in (root / "photos").glob("*.png"):
        labels = rng.integers(0, 12, (48, 48))
        z = rng.normal(size=(11, 48, 48)) + 2 * (labels == np.arange(11)[:, None, None])
        np.save(root / "softmax" / f"{path.stem}.npy", np.exp(z) / np.exp(z).sum(axis=0))
        Image.fromarray(labels.astype(np.uint8)).save(root / "labels" / path.name)


def volumes(root: Path) -> None:
    """Scans, a network for them, softmax volumes of 3 classes and labels of two raters, as NIfTI files."""
    conv_onnx(root / "unet3d.onnx")
    (root / "ct.yaml").write_text(yaml_of(ROOT / "docs/howto/volumes.md", "ct"), encoding="utf-8")
    for name in ("ct-softmax", "ct-labels", "ct-labels-2", "ct-raters", "ct-scans"):
        (root / name).mkdir()
    for case in range(4):
        rng = np.random.default_rng(case)
        labels = rng.integers(0, 3, (4, 5, 6)).repeat(2, 0).repeat(2, 1).repeat(2, 2)
        z = rng.normal(size=(3, *labels.shape)) + 2 * (labels == np.arange(3)[:, None, None, None])
        for name, array in (("softmax", np.exp(z) / np.exp(z).sum(axis=0)), ("labels", labels.astype(np.uint8))):
            image = nibabel.Nifti1Image(array.T.astype(np.float32 if name == "softmax" else np.uint8), np.eye(4))
            nibabel.save(image, root / f"ct-{name}/patient{case}.nii.gz")
        scan = nibabel.Nifti1Image(z[0].T.astype(np.float32), np.eye(4))
        nibabel.save(scan, root / f"ct-scans/patient{case}.nii.gz")
        second = np.roll(labels, 1, axis=0).astype(np.uint8).T
        nibabel.save(nibabel.Nifti1Image(second, np.eye(4)), root / f"ct-labels-2/patient{case}.nii.gz")
        both = np.stack([labels.T.astype(np.uint8), second], axis=-1)
        nibabel.save(nibabel.Nifti1Image(both, np.eye(4)), root / f"ct-raters/patient{case}.nii.gz")


def zipped(images: Path, masks: Path, out: Path, prefix: str) -> None:
    with zipfile.ZipFile(out, "w") as archive:
        for folder, files in (("images", images), ("masks", masks)):
            for file in sorted(files.iterdir()):
                archive.write(file, f"{folder}/{prefix}-{file.name}")


def yaml_of(page: Path, name: str = "my") -> str:
    text = page.read_text(encoding="utf-8")
    found = re.search(rf"^```yaml\n(# {name}.yaml\n.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.fixture(scope="session")
def trained(prepared: Path) -> Path:
    """The same with what earlier commands would have left: runs, scores, calibrators."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(prepared)
        shrink(patch, epochs=8)
        # of six images a network can learn the reverse, which has no temperature
        train = ("train", "my.yaml", "data.images=val/images", "data.masks=val/masks")
        assert run(*train, "--out", "runs/mine")[0] == 0
        assert run(*train, "model.options.dropout=0.1", "--out", "runs/dropout")[0] == 0
        assert run("evaluate", "maps", "masks", "--json", "scores.json", "--workers", "1")[0] == 0
        for name in ("cal.json", "temperature.json"):
            assert run("calibrate", "fit", "temperature", "val-maps", "val-masks", "--out", name)[0] == 0
    for name in ("duts", "seed0", "seed1", "seed2", "bce", "aslp"):
        shutil.copytree(prepared / "runs/mine", prepared / "runs" / name, copy_function=os.link)
    return prepared


def shrink(patch: pytest.MonkeyPatch, epochs: int = 1) -> None:
    """Make every configuration that is loaded a small one."""
    load = densecal.training.config.load_config

    def small(recipe: str, overrides: Sequence[str] = ()) -> object:
        changes = [*SMALL, f"optim.epochs={epochs}"]
        given = {override.split("=")[0] for override in overrides}
        if recipe == "demo":
            changes += ["data.scenes.train=6", "data.scenes.validation=4"]
        elif recipe != "my.yaml" and "data.images" not in given:
            changes += ["data.images=photos", "data.masks=masks"]
        if recipe != "demo" and "data.validation" not in given:
            changes.append("data.validation=2")
        return load(recipe, [*overrides, *changes])

    for module in (densecal.training.config, densecal.benchmark.plan, densecal.demo):
        patch.setattr(module, "load_config", small)


# ------------------------------------------------------------------ the tests


def test_pages_have_commands() -> None:
    assert len(OURS) > 40
    assert {"evaluate", "train", "predict", "calibrate", "benchmark", "export", "report", "demo"} <= {
        command.split()[0] for _, command in OURS
    }


def test_the_settings_of_the_pages_are_one_and_warn_of_nothing(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    settings = yaml_of(ROOT / "docs/howto/own-data.md")
    (tmp_path / "my.yaml").write_text(settings, encoding="utf-8")
    method = densecal.training.config.load_config(str(tmp_path / "my.yaml")).method
    create(method.name, num_samples=1, **method.options)
    assert [str(warning.message) for warning in recwarn] == []


@pytest.mark.parametrize(("page", "command"), EVERY, ids=name_of)
def test_the_command_line_accepts(page: Path, command: str) -> None:
    words = shlex.split(command)
    if words[0] != "densecal":
        assert words[0] in OTHERS
        if "densecal.cli" not in words:
            return
        words = words[words.index("densecal.cli") :]
    command_line: Any = typer.main.get_command(app)
    arguments = words[1:]
    while hasattr(command_line, "commands"):
        command_line = command_line.commands[arguments.pop(0)]
    assert command_line.make_context(command_line.name, arguments).params


def pages(*, slow: bool) -> list[object]:
    """Pages with commands to run, and these; one that a page above has run as well is not run again."""
    chosen: dict[str, list[str]] = {}
    seen: set[str] = set()
    for page, command in OURS:
        if page.name == "tutorial.md":  # tests/docs/test_tutorial.py runs it
            continue
        own = chosen.setdefault(name_of(page), [])
        parsed = starts(command, ONLY_PARSED) or ON_A_CLUSTER in command
        if not parsed and starts(command, SLOW) == slow and command not in seen:
            own.append(command)
            seen.add(command)
    return [pytest.param(own, id=page) for page, own in chosen.items() if own]


def execute(command: str, folder: Path) -> None:
    words = [word.replace("/data/", f"{folder}/data/") for word in shlex.split(command)]
    if "--out" in words and words[0] in ("train", "benchmark"):  # an earlier command's, whose folder this one makes
        shutil.rmtree(folder / words[words.index("--out") + 1], ignore_errors=True)
    code, out, err = run(*words)
    allowed = (0, 1) if starts(command, FOUND_WRONG) else (0,)
    assert code in allowed, f"densecal {command}\n{out[-2000:]}\n{err[-2000:]}"
    for option in ("--out", "--json", "--figures", "--csv", "--latex"):
        if option in words:
            assert (folder / words[words.index(option) + 1]).exists()


@pytest.fixture
def sandbox(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Everything for the commands of one page, which replace files and never write into one."""
    folder = tmp_path / "here"
    shutil.copytree(trained, folder, copy_function=os.link)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    shrink(monkeypatch)
    return folder


@pytest.mark.parametrize("commands", pages(slow=False))
def test_runs(commands: list[str], sandbox: Path) -> None:
    for command in commands:
        execute(command, sandbox)


@pytest.mark.slow
@pytest.mark.parametrize("commands", pages(slow=True))
def test_runs_slowly(commands: list[str], sandbox: Path) -> None:
    for command in commands:
        execute(command, sandbox)


TORCHRUN = sorted({command for _, command in EVERY if starts(command, ["torchrun "]) and " train " not in command})


@pytest.mark.slow
@pytest.mark.parametrize("command", TORCHRUN)
def test_torchrun_runs(command: str, sandbox: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", *shlex.split(command)[1:]]
    done = subprocess.run(launcher, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.slow
def test_the_figures_of_the_pages_are_drawn_from_the_demo(sandbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs/tools"))
    import make_figures  # type: ignore[import-not-found]

    assert run("demo", "--out", "demo")[0] == 0
    monkeypatch.setattr(make_figures, "IMAGES", sandbox / "drawn")
    make_figures.main(sandbox / "demo")
    drawn = {path.name for path in (sandbox / "drawn").iterdir()}
    shown = {name for page in PAGES for name in re.findall(r"images/(\w+\.png)\)", page.read_text(encoding="utf-8"))}
    assert len(drawn) == 4
    assert drawn <= shown


def test_tests_that_the_pages_name_exist() -> None:
    named = [found for page in PAGES for found in re.findall(r"`pytest ([^`]+)`", page.read_text(encoding="utf-8"))]
    assert len(named) > 3
    for arguments in named:
        words = shlex.split(arguments)
        (path,) = (ROOT / word for word in words if word.startswith("tests/"))
        chosen = words[words.index("-k") + 1] if "-k" in words else ""
        assert re.search(rf"^def test_\w*{chosen}", path.read_text(encoding="utf-8"), flags=re.MULTILINE), arguments


def test_every_reason_is_needed() -> None:
    every = [command for _, command in OURS]
    for beginning in (*ONLY_PARSED, *SLOW, *FOUND_WRONG):
        assert any(command.startswith(beginning) for command in every), beginning


def test_the_table_against_other_libraries_is_what_they_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs/tools"))
    from compare_libraries import table  # type: ignore[import-not-found]

    printed = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    rows = [line for line in table().splitlines() if line.count("|") == 6]
    assert len(rows) > 8
    for row in rows:
        assert row in printed


def test_readme_is_short_and_its_picture_small() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 100
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", text):
        data = (ROOT / picture).read_bytes()
        assert len(data) < 150_000
        Image.open(io.BytesIO(data)).verify()
    for link in re.findall(r"\]\(((?!http)[^)#]+)\)", text):
        assert (ROOT / link).exists(), link
