"""Help: commands in the order of use, -h everywhere, flags without opposites, and a quick start."""

import subprocess
import sys
from typing import Any

import pytest
import typer

from densecal.cli import app
from densecal.cli.app import COMMANDS as LISTED
from densecal.cli.app import ORDER
from tests import running


def commands(group: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return the commands of a group by path, subgroups included."""
    if not hasattr(group, "commands"):
        return {path: group}
    inner = [commands(command, (*path, name)) for name, command in group.commands.items()]
    return {path: group} | {key: command for part in inner for key, command in part.items()}


SHARED = {
    "--address", "--axes", "--bins", "--channels-last", "--cost-alarm", "--cost-miss", "--engine", "--force",
    "--groups", "--key", "--latex", "--logits", "--max-value", "--multilabel", "--normalise", "--region",
    "--strip-suffix", "--workers",
}  # fmt: skip
"""Options that several commands have, and that mean the same in all of them."""
COMMANDS = commands(typer.main.get_command(app))


def test_commands_are_listed_in_the_order_of_use():
    _, text, _ = running.run("--help")
    listed = [name for line in text.splitlines() for name in line.split()[1:2] if (name,) in COMMANDS]
    assert listed == [name for name in ORDER if (name,) in COMMANDS]
    assert len(listed) > 8
    assert {(name,) for name in listed} == {path for path in COMMANDS if len(path) == 1}


def test_ways_to_calibrate_are_listed_in_the_order_of_use():
    assert list(COMMANDS[("calibrate",)].commands) == ["fit", "select", "apply", "prior"]


@pytest.mark.parametrize("name", ORDER)
def test_the_list_of_commands_says_what_their_own_help_says(name: str):
    assert LISTED[name][1] == " ".join(COMMANDS[(name,)].help.split("\n\n")[0].split())


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_a_short_help_option(path: tuple[str, ...]):
    code, text, _ = running.run(*path, "-h")
    assert (code, "Usage:" in text) == (0, True)
    assert running.run(*path, "--help")[1] == text


def test_every_command_has_an_example_that_names_it():
    for path, command in COMMANDS.items():
        if path and not hasattr(command, "commands"):
            assert "Example" in command.help, path
            assert f"`densecal {' '.join(path)}" in command.help, path


def test_an_option_means_the_same_in_every_command():
    meanings: dict[str, set[str]] = {}
    for command in COMMANDS.values():
        for parameter in command.params:
            if parameter.param_type_name == "option" and parameter.opts[0] in SHARED:
                meanings.setdefault(parameter.opts[0], set()).add(parameter.help)
    assert set(meanings) == SHARED
    assert {name: texts for name, texts in meanings.items() if len(texts) > 1} == {}


def test_flags_are_shown_as_flags():
    for path, command in COMMANDS.items():
        for parameter in command.params:
            assert not parameter.secondary_opts, (path, parameter.name)
        assert "bool" not in running.run(*path, "-h")[1].lower().replace("boolean", "bool"), path


def test_help_and_completion_import_neither_numpy_nor_torch():
    script = "import sys; from densecal import cli; assert not {'numpy', 'torch', 'scipy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
    assert "--install-completion" in running.run("--help")[1]
