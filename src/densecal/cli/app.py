"""The application that every command registers itself with."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from densecal import __version__
from densecal.cli.common import set_quiet
from densecal.errors import Preempted

ORDER = (
    "demo", "data", "train", "predict", "evaluate", "raters", "merge", "check", "report", "calibrate", "risk-control",
    "shift", "benchmark", "reproduce", "export", "cache",
)  # fmt: skip
"""Commands in the order in which they are used; others follow."""
GO_ON = {
    "train": "--resume continues after the last finished epoch",
    "benchmark": "the same command continues, and finished cells are kept",
    "reproduce": "the same command continues, and finished cells are kept",
}
"""How to go on after a command was stopped; every other command starts again."""


class _Terminated(BaseException):
    """SIGTERM was received."""


def _as_flags(parameters: list[Any]) -> list[Any]:
    """Show options that take no value without a type, which would look like a value."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


def _quiet_option() -> Any:
    """Return the option --quiet as typer makes it of a command's parameter."""
    made = typer.Typer(add_completion=False)

    @made.command()
    def command(
        quiet: Annotated[
            bool,
            typer.Option(
                "--quiet",
                "-q",
                callback=set_quiet,
                expose_value=False,
                help="Print no tables, notes or progress, only warnings and errors.",
            ),
        ] = False,
    ) -> None:
        pass  # never called

    return next(parameter for parameter in typer.main.get_command(made).params if parameter.name == "quiet")


_QUIET = _quiet_option()


class _Command(TyperCommand):
    """A command whose flags are shown as flags, and which can be quiet."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with help."""
        own = super().get_params(ctx)
        return _as_flags([*own[:-1], _QUIET, *own[-1:]])  # help is the last


class _Group(TyperGroup):
    """Commands whose flags are shown as flags."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with help."""
        return _as_flags(super().get_params(ctx))


class _Commands(_Group):
    """The commands in the order of use. One that is stopped says how to go on."""

    def list_commands(self, ctx: Any) -> list[str]:
        """List the commands in the order of use."""
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))

    def invoke(self, ctx: Any) -> Any:
        """Run a command; Ctrl-C and SIGTERM become `Preempted`."""
        try:
            with _raise_on_sigterm():
                return super().invoke(ctx)
        except (KeyboardInterrupt, _Terminated) as stop:
            command = ctx.invoked_subcommand or "densecal"
            stopped = Preempted(f"{command}: stopped; {GO_ON.get(command, 'the same command starts again')}")
            stopped.number = signal.SIGTERM if isinstance(stop, _Terminated) else signal.SIGINT
            raise stopped from None


@contextmanager
def _raise_on_sigterm() -> Iterator[None]:
    """Raise an exception when SIGTERM is received, so that files in the making are removed."""
    is_main = threading.current_thread() is threading.main_thread()
    # a process that waits for others inside a collective would not notice the exception before the wait ends
    waits_for_others = os.environ.get("WORLD_SIZE", "1") != "1"
    if not is_main or waits_for_others or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def terminate(number: int, frame: Any) -> None:
        raise _Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


app = typer.Typer(
    name="densecal",
    cls=_Commands,
    help="Segmentation models whose confidence can be believed.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        print(f"densecal {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def show_flags() -> None:
    """Let the help of all registered commands show flags as flags."""
    groups = [group.typer_instance for group in app.registered_groups]
    for group in groups:
        if group is not None:
            group.info.cls = _Group
    for commands in (app, *filter(None, groups)):
        for command in commands.registered_commands:
            command.cls = _Command
