"""The application that every command registers itself with."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from densecal import __version__
from densecal.cli.common import set_quiet
from densecal.errors import Preempted

COMMANDS = {
    "demo": ("train", "Show in about two minutes what calibration is: train with and without it on generated scenes."),
    "data": ("data", "Check, generate and pack data sets."),
    "train": ("train", "Train a calibrated segmentation model and write a run folder."),
    "predict": ("predict", "Write the probability maps of a trained model, at the size of each image."),
    "evaluate": (
        "evaluate",
        "Measure how well the confidence of prediction maps is calibrated, and how good the maps are.",
    ),
    "raters": (
        "raters",
        "Score maps against several raters: calibration against their mean vote, volumes, and how far they agree.",
    ),
    "merge": (
        "merge",
        "Add up the parts of an evaluation, exactly: the figures are those of one call over all images.",
    ),
    "check": (
        "check",
        "Fail, with exit code 1, when a figure is beyond its limit or worse than in an older evaluation.",
    ),
    "report": (
        "report",
        "Make one self-contained HTML file, smaller than 5 MB, from any number of runs and evaluations.",
    ),
    "calibrate": ("calibrate", "Fit a post-hoc calibrator, choose one, and apply it to maps."),
    "risk-control": (
        "risk_control",
        "Find the threshold that misses at most a share alpha of the foreground of a new image, on average.",
    ),
    "shift": (
        "shift",
        "Measure how calibration and accuracy suffer as images get noisy, blurred, compressed, bright or low in "
        "contrast.",
    ),
    "benchmark": (
        "benchmark",
        "Compare methods: train and evaluate every method with every seed, and write the table of the paper.",
    ),
    "reproduce": (
        "reproduce",
        "Make a table or figure of the paper: run what it needs and print the paper's numbers beside ours.",
    ),
    "export": ("export", "Write a trained model, with its calibrator, as one ONNX file from images to probabilities."),
    "cache": ("cache", "Show or clear the packed images that `train` keeps."),
}
"""Commands in the order in which they are used: the module of each, and its help in the list of all.

A module is imported when its command is asked for. A test compares the help with that of the command.
"""
ORDER = tuple(COMMANDS)
GO_ON = {
    "train": "--resume continues after the last finished epoch",
    "benchmark": "the same command continues, and finished cells are kept",
    "reproduce": "the same command continues, and finished cells are kept",
}
"""How to continue after a command was stopped. All other commands start again."""


class _Terminated(BaseException):
    """SIGTERM was received."""


def _as_flags(parameters: list[Any]) -> list[Any]:
    """Make options that take no value show no type, which would look like a value."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


def _quiet_option() -> Any:
    """Return the option --quiet as typer derives it from a command's parameter."""
    temporary = typer.Typer(add_completion=False)

    @temporary.command()
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

    return next(parameter for parameter in typer.main.get_command(temporary).params if parameter.name == "quiet")


_QUIET = _quiet_option()


class _Command(TyperCommand):
    """A command that shows flags without a type and has the option --quiet."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with help."""
        params = super().get_params(ctx)
        return _as_flags([*params[:-1], _QUIET, *params[-1:]])  # help is the last


class _Group(TyperGroup):
    """Commands that show flags without a type."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with help."""
        return _as_flags(super().get_params(ctx))


class _Unloaded(TyperCommand):
    """The name and help of a command whose module is not imported yet."""


class _Loading(dict[str, Any]):
    """Commands by name, imported when they are looked up."""

    def __getitem__(self, name: str) -> Any:
        if isinstance(super().__getitem__(name), _Unloaded):
            import_module(f"densecal.cli.{COMMANDS[name][0]}")
            show_flags()
            self.update((other, command) for other, command in _registered().items() if name == other)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a command, or the default if there is none of that name."""
        return self[name] if name in self else default  # noqa: SIM401 (this is `get`)

    def peek(self, name: str) -> Any:
        """Return a command without importing it."""
        return super().get(name)

    def items(self) -> Any:
        """Return names and commands."""
        return [(name, self[name]) for name in self]


class _Commands(_Group):
    """The commands in the order of use. One that is stopped says how to continue."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.registered = self.commands
        self.commands: _Loading = _Loading({name: _Unloaded(name, help=text) for name, (_, text) in COMMANDS.items()})
        self._is_listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """List the commands in the order of use."""
        return list(self.commands)

    def get_command(self, ctx: Any, name: str) -> Any:
        """Return a command. While all are listed, its name and help suffice."""
        return self.commands.peek(name) if self._is_listing else self.commands.get(name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, for which no command is imported."""
        self._is_listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._is_listing = False

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the arguments; Ctrl-C becomes `Preempted`, for which typer has no words."""
        try:
            return super().make_context(*arguments, **options)
        except KeyboardInterrupt:
            stopped = Preempted("stopped; the same command starts again")
            stopped.number = signal.SIGINT
            raise stopped from None

    def invoke(self, ctx: Any) -> Any:
        """Run a command; Ctrl-C and SIGTERM become `Preempted`."""
        received: list[int] = []
        try:
            with _raise_on_sigterm(), _note_ctrl_c(received):
                return super().invoke(ctx)
        except Preempted:
            raise
        except (KeyboardInterrupt, _Terminated, Exception) as stop:
            if isinstance(stop, Exception) and not received:
                raise
            command = ctx.invoked_subcommand or "densecal"
            stopped = Preempted(f"{command}: stopped; {GO_ON.get(command, 'the same command starts again')}")
            stopped.number = signal.SIGTERM if isinstance(stop, _Terminated) else signal.SIGINT
            raise stopped from None


@contextmanager
def _raise_on_sigterm() -> Iterator[None]:
    """Raise an exception when SIGTERM is received, so that unfinished files are removed."""
    is_main = threading.current_thread() is threading.main_thread()
    # in a process that waits for others in a collective, the exception would not take effect before the wait ends
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


@contextmanager
def _note_ctrl_c(received: list[int]) -> Iterator[None]:
    """Record that Ctrl-C was received, because an import that it interrupts may raise another exception instead."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        received.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _registered() -> dict[str, Any]:
    """Return the commands of all modules that are imported."""
    commands: dict[str, Any] = vars(typer.main.get_group(app))["registered"]
    return commands


app = typer.Typer(
    name="densecal",
    cls=_Commands,
    help="Segmentation models whose confidence can be believed.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
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
    """Make the help of all registered commands show flags without a type."""
    groups = [group.typer_instance for group in app.registered_groups]
    for group in groups:
        if group is not None:
            group.info.cls = _Group
    for commands in (app, *filter(None, groups)):
        for command in commands.registered_commands:
            command.cls = _Command
