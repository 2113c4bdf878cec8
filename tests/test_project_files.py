"""Files that other services read agree with the package: versions of Python, commands, pins, citation, action."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import densecal
from densecal.evaluation.record import to_file
from densecal.io.atomic import write_json
from tests.records import small_record

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = [text.rsplit(" ")[-1] for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
YAML = [
    *WORKFLOWS, *sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ROOT / "action.yml",
    ROOT / ".pre-commit-config.yaml", ROOT / ".readthedocs.yaml", ROOT / "CITATION.cff",
]  # fmt: skip
OTHER_FILES = [
    ROOT / name
    for name in ("Dockerfile", ".dockerignore", "CODE_OF_CONDUCT.md", "constraints.txt", "requirements.lock")
]


def load(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def steps(content: Any) -> list[dict[str, Any]]:
    return [step for job in content["jobs"].values() for step in job.get("steps", [])]


def targets() -> set[str]:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert phony is not None
    return set(phony[1].split())


@pytest.mark.parametrize("path", [*YAML, *OTHER_FILES], ids=lambda path: path.name)
def test_no_file_names_a_path_or_a_package_host_of_one_machine(path: Path):
    text = path.read_text(encoding="utf-8")
    if path in YAML:
        assert isinstance(yaml.safe_load(text), dict)
    assert not re.search(r"file://|(?<![\w.}])/(?:home|root|opt|work|mnt)/", text)
    hosts = set(re.findall(r"https?://([^/\s]+)", text))
    assert hosts <= {"github.com", "download.pytorch.org"}


# ------------------------------------------------------------------ versions of Python, and of packages


def test_tests_run_on_every_version_of_python_that_is_declared():
    assert load(".github/workflows/ci.yml")["jobs"]["tests"]["strategy"]["matrix"]["python"] == PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    numbers = [int(version.split(".")[1]) for version in PYTHONS]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))


def test_everything_else_runs_on_a_declared_version():
    versions = [
        str(step["with"]["python-version"])
        for path in WORKFLOWS
        for step in steps(yaml.safe_load(path.read_text(encoding="utf-8")))
        if step.get("uses", "").startswith("actions/setup-python@")
    ]
    docker = re.search(r"^FROM python:(\S+)-slim$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    assert docker is not None
    for version in [*versions, docker[1], load(".readthedocs.yaml")["build"]["tools"]["python"]]:
        assert version in [*PYTHONS, "${{ matrix.python }}"]


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_pins_every_direct_dependency_once(python: str):
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line]
    here = [pin for pin in pins if pin.marker is None or pin.marker.evaluate({"python_version": python})]
    names = [canonicalize_name(pin.name) for pin in here]
    assert len(names) == len(set(names))
    extras = PROJECT["optional-dependencies"]
    installed = re.search(r"-e '\.\[([\w,]+)\]'", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert installed is not None
    wanted = [*PROJECT["dependencies"], *(text for extra in installed[1].split(",") for text in extras[extra])]
    exact = {canonicalize_name(pin.name): str(pin.specifier) for pin in here}
    for requirement in map(Requirement, wanted):
        version = exact[canonicalize_name(requirement.name)]
        assert re.fullmatch(r"==[\w.+]+", version)
        assert version.removeprefix("==") in requirement.specifier


def test_ruff_is_the_same_before_a_commit_and_in_make_lint():
    (repository,) = (r for r in load(".pre-commit-config.yaml")["repos"] if "ruff" in r["repo"])
    assert f"ruff=={repository['rev'].removeprefix('v')}\n" in (ROOT / "constraints.txt").read_text(encoding="utf-8")


# ------------------------------------------------------------------ commands


def test_commands_are_targets_of_the_makefile():
    ours = [shlex.split(step["run"]) for step in steps(load(".github/workflows/ci.yml")) if "run" in step]
    assert [words[0] for words in ours] == ["make"] * len(ours)
    assert {words[1] for words in ours} == {"test", "lint", "docs"} <= targets()
    hooks = [
        hook["entry"].split()
        for r in load(".pre-commit-config.yaml")["repos"]
        for hook in r["hooks"]
        if "entry" in hook
    ]
    assert hooks == [["make", "lint"]]


def test_a_release_is_published_after_all_of_ci_without_a_password():
    jobs = load(".github/workflows/release.yml")["jobs"]
    assert jobs["ci"]["uses"] == "./.github/workflows/ci.yml"
    assert True in load(".github/workflows/ci.yml")  # YAML reads `on` as true
    assert "workflow_call" in load(".github/workflows/ci.yml")[True]
    assert set(jobs["publish"]["needs"]) == {"ci", "build", "wheels"}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    for path in WORKFLOWS:
        assert "secrets." not in path.read_text(encoding="utf-8")
        assert load(str(path.relative_to(ROOT)))["permissions"] == {"contents": "read"}


@pytest.mark.parametrize(("tag", "code"), [(f"v{densecal.__version__}", 0), ("v0.0.9", 1)])
def test_a_release_needs_a_tag_that_is_the_version(tag: str, code: int):
    (check,) = (s for s in steps(load(".github/workflows/release.yml")) if s.get("name") == "The tag is the version")
    done = subprocess.run(
        ["bash", "-c", check["run"]], cwd=ROOT, env={**os.environ, "GITHUB_REF_NAME": tag}, capture_output=True
    )
    assert done.returncode == code


def lock() -> dict[str, tuple[Requirement, list[str]]]:
    """Return every package of requirements.lock and its hashes."""
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    blocks = re.findall(r"^(\w.*?) \\\n((?: .*\n)+)", text, flags=re.MULTILINE)
    pins = {canonicalize_name(Requirement(pin).name): (Requirement(pin), hashes.split()) for pin, hashes in blocks}
    assert len(pins) == len(blocks) == len(re.findall(r"^\w", text, flags=re.MULTILINE))
    return pins


def test_every_package_of_the_container_has_hashes_and_the_version_that_was_tested():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tested = {canonicalize_name(pin.name): pin.specifier for pin in map(Requirement, filter(None, lines))}
    own = {"setuptools"}  # builds packages
    elsewhere = {"colorama", "httpx2-jsfetch", "tzdata"}  # not on Linux, where constraints.txt was made
    for name, (pin, hashes) in lock().items():
        assert name in tested or name in own | elsewhere
        assert pin.specifier == tested.get(name, pin.specifier)
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}|\\", word) for word in hashes)


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_of_the_container_holds_what_the_package_needs(python: str):
    extras = PROJECT["optional-dependencies"]
    locked = lock()
    wanted = {
        canonicalize_name(Requirement(text).name)
        for text in PROJECT["dependencies"] + extras["train"] + extras["export"]
    }
    assert wanted - locked.keys() == {"torch", "torchvision"}
    environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    assert all(
        pin.marker is None or pin.marker.evaluate(environment) for name, (pin, _) in locked.items() if name in wanted
    )


def test_the_container_is_built_from_the_lock_and_gets_every_file_that_it_copies():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    torch, others, own = re.findall(r"pip install --no-cache-dir --no-deps ([^\\\n]*[^\\\s])", text)
    assert torch.endswith("-c constraints.txt torch torchvision")
    assert others == "--require-hashes -r requirements.lock"
    assert own == "--no-build-isolation ."
    copied = {name for line in re.findall(r"^COPY (.*)$", text, flags=re.MULTILINE) for name in line.split()[:-1]}
    kept = set(re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)
    assert {PROJECT["readme"], *PROJECT["license-files"]} <= copied


def test_read_the_docs_installs_from_the_lock():
    content = load(".readthedocs.yaml")
    assert content["build"]["jobs"]["install"] == ["pip install -c constraints.txt '.[docs]'"]
    assert (ROOT / content["mkdocs"]["configuration"]).is_file()
    assert "docs" in PROJECT["optional-dependencies"]


# ------------------------------------------------------------------ citation and templates


def test_the_citation_names_the_software_and_the_paper():
    content = load("CITATION.cff")
    assert content.keys() >= {"cff-version", "message", "title", "authors"}  # what the format requires
    assert content["cff-version"] == "1.2.0"
    assert str(content["version"]) == densecal.__version__
    assert content["license"] == PROJECT["license"]
    paper = content["preferred-citation"]
    assert paper.keys() >= {"type", "title", "authors"}
    short = [f"{author['given-names'][0]}. {author['family-names']}" for author in paper["authors"]]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"{', '.join(short[:-1])} and {short[-1]}, *{paper['title']}*, ICCV {paper['year']}" in readme
    assert "(CITATION.cff)" in readme


def test_issue_forms_have_what_github_requires():
    forms = [path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"]
    assert len(forms) == 2
    for path in forms:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert form.keys() >= {"name", "description", "body"}
        assert all(part["attributes"]["label"] for part in form["body"])
        names = [part["id"] for part in form["body"]]
        assert len(names) == len(set(names))


def test_links_of_the_code_of_conduct_exist():
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "CODE_OF_CONDUCT.md").read_text(encoding="utf-8"))
    assert links
    assert all((ROOT / link).is_file() for link in links)


# ------------------------------------------------------------------ the action


@pytest.fixture
def action(tmp_path: Path) -> Any:
    """Run the last step of the action as GitHub would, with the densecal of these tests."""
    program = tmp_path / "densecal/bin/densecal"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m densecal "$@"\n')
    program.chmod(0o755)
    write_json(tmp_path / "my scores.json", to_file([small_record(segmentation={"dice": 0.8, "iou": 0.7})]))

    def run(**inputs: str) -> subprocess.CompletedProcess[str]:
        definition = load("action.yml")
        given = {name: entry.get("default", "") for name, entry in definition["inputs"].items()} | inputs
        assert given.keys() == definition["inputs"].keys()
        step = definition["runs"]["steps"][-1]
        variables = {
            name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda m: given[m[1]], text)
            for name, text in step["env"].items()
        }
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=tmp_path, env={**os.environ, "RUNNER_TEMP": str(tmp_path), **variables}, capture_output=True, text=True,
        )  # fmt: skip

    return run


def test_the_action_checks_every_limit(action: Any):
    done = action(scores="my scores.json", max="ece_ew=0.02\noe_ew=0.005", min="dice=0.7  iou=0.9")
    assert done.returncode == 1
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["passed:", "ece_ew"], ["failed:", "oe_ew"], ["passed:", "dice"], ["failed:", "iou"],
    ]  # fmt: skip


def test_the_action_runs_nothing_that_an_input_holds(action: Any, tmp_path: Path):
    done = action(scores="my scores.json", max="$(touch${IFS}ran) `touch ran` *", baseline="x; touch ran")
    assert done.returncode == 2
    assert not (tmp_path / "ran").exists()
    assert "inputs." not in "".join(step["run"] for step in load("action.yml")["runs"]["steps"])


def test_the_page_on_the_action_uses_its_inputs():
    page = (ROOT / "docs/howto/fail-when-worse.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    (step,) = yaml.safe_load(block)
    assert step["with"].keys() == load("action.yml")["inputs"].keys()
