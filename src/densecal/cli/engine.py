"""The options --engine and --address, which choose where a command does its work."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from densecal.errors import InputError

if TYPE_CHECKING:
    from densecal.integrations.ray_engine import RayEngine


class EngineName(StrEnum):
    """Where the work is done."""

    local = "local"
    ray = "ray"


EngineOption = Annotated[
    EngineName, typer.Option("--engine", help="ray shares the work among the nodes of a Ray cluster.")
]
Address = Annotated[
    str | None,
    typer.Option(help="With --engine ray: auto or HOST:PORT of a running cluster. Default: Ray on this machine."),
]


@contextmanager
def open_engine(
    engine: EngineName, address: str | None, workers: int | None = None, *, preload: Sequence[str] = ()
) -> Iterator[RayEngine | None]:
    """Join the cluster that the options choose, if any.

    Args:
        engine: Where the work is done.
        address: Address of the cluster.
        workers: Tasks at a time; by default as many as the cluster can run.
        preload: Modules that the nodes import while the command prepares the work.
    """
    if engine is EngineName.local:
        if address is not None:
            raise InputError("--address", address, "--engine ray as well")
        yield None
        return
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError("--engine ray", "under torchrun", "a single process, which hands the work to the cluster")
    try:
        from densecal.integrations.ray_engine import RayEngine
    except ImportError as error:
        raise InputError("--engine ray", str(error), "Ray: pip install 'densecal[ray]'") from None
    with RayEngine(address, workers, preload=preload) as cluster:
        yield cluster
