"""The page of the command line, made from the commands themselves whenever mkdocs builds the site (a hook)."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from densecal.cli import app

HEAD = """# Command line

**Which commands and options are there?** This page is generated from `densecal --help`.
`densecal --install-completion` sets up your shell to complete commands and options.
Every command has `--help` and `--quiet`. All commands have the same [exit codes](exit-codes.md).
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page to the site."""
    files.append(File.generated(config, "cli.md", content=page()))
    return files


def page() -> str:
    """Return the page."""
    return HEAD + "".join(section(path, command) for path, command in commands(typer.main.get_command(app), "densecal"))


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield every command with its full name, groups before their members."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, inner in sorted(command.commands.items()):
        if not inner.hidden:
            yield from commands(inner, f"{path} {name}")


def section(path: str, command: Any) -> str:
    """Return heading, help and options of a command."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden and p.name != "help"]
    usage = " ".join([path, *(name_of(argument) for argument in arguments), "[OPTIONS]"[: 9 * bool(options)]])
    text = f"\n## {path}\n\n`{usage.strip()}`\n\n{plain(command.help or '')}\n"
    rows = [(f"`{name_of(argument).strip('[]')}`", described(argument)) for argument in arguments]
    rows += [
        (", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts)), described(option))
        for option in options
    ]
    if rows:
        text += "\n| | |\n|---|---|\n" + "".join(f"| {name} | {meaning} |\n" for name, meaning in rows)
    return text


def name_of(argument: Any) -> str:
    """Return how an argument is written: in brackets if it may be left out."""
    name = argument.name.upper() + (" ..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def described(parameter: Any) -> str:
    """Return what a parameter means, and its default."""
    text = plain(getattr(parameter, "help", None) or "").replace("\n", " ").replace("|", "\\|")
    default = parameter.default
    if (
        parameter.param_type_name == "option"
        and default not in (None, False, True, ..., (), [])
        and not callable(default)
    ):
        text += f" Default: `{default}`."
    return text + (" Required." if parameter.required and parameter.param_type_name == "option" else "")


def plain(text: str) -> str:
    """Return help as Markdown."""
    return re.sub(r"\n{3,}", "\n\n", inspect.cleandoc(text).replace("\b", "").replace("\f", "")).strip()
