"""Running a benchmark: worker processes that take cells from one list, guarded by locks, and one that watches them."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Protocol

import torch

from densecal.benchmark.matrix import Matrix, dump_matrix, load_matrix
from densecal.benchmark.plan import ERROR, Cell, Plan, Task, has_failed, is_finished
from densecal.benchmark.sets import ImageSets, check_datasets
from densecal.benchmark.tuning import choices
from densecal.data import open_source
from densecal.errors import InputError, Preempted
from densecal.io.atomic import write_text
from densecal.runtime.cores import SHARE, cores
from densecal.runtime.lock import lock_folder
from densecal.runtime.pool import environment, start_worker
from densecal.training.samples import open_data
from densecal.training.sections import DataConfig

POLL_SECONDS = 0.5
REPORT_SECONDS = 0.2


@dataclass(frozen=True)
class Event:
    """Something that happened to a task.

    Attributes:
        task: Its key.
        state: ``waiting``, ``running``, ``finished`` or ``failed``.
        text: The current step, or the reason of the failure.
    """

    task: str
    state: str
    text: str = ""


Watch = Callable[[Event], None]


def run_benchmark(
    matrix: Matrix, out: Path, jobs: int = 1, watch: Watch | None = None, cluster: Cluster | None = None
) -> None:
    """Run the cells of a matrix that are not finished yet.

    Every task ends with a result file or, if it failed, with an error file. Failures of earlier calls are retried.

    Args:
        matrix: The benchmark.
        out: Its folder.
        jobs: Processes per device; every GPU is a device, or else the CPU.
        watch: Called with every event.
        cluster: Runs the cells in place of processes on this machine, one per GPU if it has any.

    Raises:
        InputError: The settings or the data are invalid; nothing was trained.
        Preempted: SIGTERM was received; another call continues.
    """
    watch = watch or (lambda event: None)
    plan = Plan(matrix, out)
    _forget_failures(out)
    forget_lost_first_stages(plan)
    tasks = open_tasks(plan, set())
    if not tasks:
        return
    check_datasets(matrix.datasets)
    _pack(plan, watch)
    _write_matrix(matrix, out / "matrix.yaml")
    for task in tasks:
        watch(Event(task.key, "waiting"))
    if cluster is not None:
        _run_on(cluster, plan, watch)
        return
    workers: list[_Worker] = []
    try:
        with _raise_on_sigterm():
            workers += [_Worker(matrix, out, variables) for variables in _environments(plan, jobs)]
            _watch_workers(workers, watch)
    finally:
        for worker in workers:
            worker.ask_to_stop()
        for worker in workers:
            worker.close()


class Cluster(Protocol):
    """An engine that yields results as they come, takes new calls as these become ready, and survives lost work."""

    def map(
        self,
        function: Callable[..., Event],
        calls: Iterable[tuple[Any, ...] | None],
        *,
        gpu: bool = False,
        ordered: bool = True,
        lost: Callable[[tuple[Any, ...], str], Event] | None = None,
    ) -> Iterator[Event]:
        """Yield what the function returns for each call. ``None`` among the calls means: wait for a result first."""
        ...


def _run_on(cluster: Cluster, plan: Plan, watch: Watch) -> None:
    """Run the tasks of a plan on a cluster, each once."""
    running: dict[str, Path] = {}
    ended: set[str] = set()

    def calls() -> Iterator[tuple[Any, ...] | None]:
        done: set[Path] = set()
        while tasks := [task for task in open_tasks(plan, done) if task.key not in ended]:
            ready = [task for task in tasks if task.key not in running and not _waits(task)]
            for task in ready:
                running[task.key] = task.folder
                watch(Event(task.key, "running", "on the cluster"))
                yield plan.matrix, plan.out, task.key
            yield None

    def lost(call: tuple[Any, ...], reason: str) -> Event:
        write_text(running[call[2]] / ERROR, reason + "\n")
        return Event(call[2], "failed", reason)

    gpu = plan.untuned[0].config.engine.accelerator != "cpu"
    for event in cluster.map(run_cell, calls(), gpu=gpu, ordered=False, lost=lost):
        del running[event.task]
        if event.state in ("finished", "failed"):
            ended.add(event.task)
        watch(event)


def run_cell(matrix: Matrix, out: Path, key: str) -> Event:
    """Run one task in this process, unless it is finished or another process runs it; return its last event."""
    plan = Plan(matrix, out)
    task = next((task for task in open_tasks(plan, set()) if task.key == key), None)
    last = _LastEvent(Event(key, "finished", "by another process"))
    if task is not None and not _try_task(task, _image_sets(), last):
        time.sleep(POLL_SECONDS)
        return Event(key, "waiting", "for another process")
    return last.event


class _LastEvent:
    """Keeps the last event of a task, in place of the pipe to a watching process."""

    def __init__(self, event: Event) -> None:
        self.event = event

    def send(self, message: tuple[Event, Path]) -> None:
        self.event = message[0]


@lru_cache(maxsize=1)
def _image_sets() -> ImageSets:
    """Keep image sets between the tasks of a process."""
    return ImageSets()


def _waits(task: Task) -> bool:
    """Return whether a task waits for its first stage."""
    return isinstance(task, Cell) and task.start is not None and not is_finished(task.start)


def _write_matrix(matrix: Matrix, path: Path) -> None:
    """Write the matrix into its folder, unless an equal file is there, which may be the one that was read."""
    with contextlib.suppress(InputError):
        if load_matrix(path) == matrix:
            return
    write_text(path, dump_matrix(matrix))


def open_tasks(plan: Plan, done: set[Path]) -> list[Task]:
    """Return the tasks that can be done now, or wait for a first stage, and are neither finished nor failed.

    Args:
        plan: All tasks.
        done: Folders of tasks that are known to be finished and are not read again; finished tasks are added.
    """

    def is_done(task: Task) -> bool:
        if task.folder not in done and is_finished(task):
            done.add(task.folder)
        return task.folder in done

    tuned = plan.tuned_cells({label: choice.chosen for label, choice in choices(plan).items()})
    references = plan.references([*plan.untuned, *tuned])
    # every method has its first seed before any has its second, so that a table is useful early
    cells = sorted([*plan.untuned, *tuned], key=lambda cell: (plan.matrix.seeds.index(cell.seed), bool(cell.start)))
    tasks: list[Task] = [cell for cell in (*plan.trials, *cells) if not (cell.start and has_failed(cell.start))]
    tasks += [reference for reference in references if all(map(is_done, reference.members))]
    return [task for task in tasks if not is_done(task) and not has_failed(task)]


class _Worker:
    """A process that runs tasks, and its current task."""

    def __init__(self, matrix: Matrix, out: Path, variables: dict[str, str]) -> None:
        self.arguments = (matrix, out, variables)
        self.task: tuple[str, Path] | None = None
        self.pipe, other = multiprocessing.Pipe(duplex=False)
        self.process: SpawnProcess = multiprocessing.get_context("spawn").Process(
            target=_work, args=(matrix, out, other)
        )
        with environment(variables):
            self.process.start()
        other.close()  # so that the pipe ends when the process does

    def ask_to_stop(self) -> None:
        """Send SIGTERM: a training writes a checkpoint and ends, anything else ends at once."""
        if self.process.is_alive():
            self.process.terminate()

    def close(self) -> None:
        """Wait for the process to end."""
        self.process.join()
        self.pipe.close()


def _watch_workers(workers: list[_Worker], watch: Watch) -> None:
    """Pass on the events of the workers until all have ended. A worker that dies is replaced, and its task fails."""
    while running := {worker.pipe: worker for worker in workers if not worker.pipe.closed}:
        for pipe in wait(list(running)):
            assert isinstance(pipe, Connection)
            worker = running[pipe]
            try:
                event, folder = pipe.recv()
            except EOFError:
                worker.close()
                if worker.process.exitcode != 0:
                    workers.append(_replace_worker(worker, watch))
                continue
            worker.task = (event.task, folder) if event.state == "running" else None
            watch(event)


def _replace_worker(worker: _Worker, watch: Watch) -> _Worker:
    """Note the failure of a worker that died, and start another in its place."""
    code = worker.process.exitcode
    if worker.task is None:
        raise InputError(
            "benchmark", f"a worker process died before it took a cell (exit code {code})", "enough memory"
        )
    key, folder = worker.task
    reason = f"the process died (exit code {code}): killed, or out of memory"
    write_text(folder / ERROR, reason + "\n")
    watch(Event(key, "failed", reason))
    return _Worker(*worker.arguments)


def _work(matrix: Matrix, out: Path, pipe: Connection) -> None:
    """Run open tasks in a worker process, one at a time, until none is left."""
    start_worker()
    plan, sets, done = Plan(matrix, out), ImageSets(), set[Path]()
    while tasks := open_tasks(plan, done):
        if not any(_try_task(task, sets, pipe) for task in tasks):
            # other processes run the rest; once they finish or die, this one may have more to do
            time.sleep(POLL_SECONDS)


def _try_task(task: Task, sets: ImageSets, pipe: Connection | _LastEvent) -> bool:
    """Run a task and return true, unless it waits for its first stage, or another process runs or has finished it."""
    # only workers need the networks, whose libraries take seconds to import
    from densecal.benchmark.cells import run_task

    if _waits(task):
        return False
    with lock_folder(task.folder) as held:
        if not held or is_finished(task) or has_failed(task):
            return False
        report = _Reporter(pipe, task)
        report.send("running", "starting")
        start = time.perf_counter()
        try:
            run_task(task, sets, report)
        except Preempted:
            sys.exit(128 + signal.SIGTERM)
        except Exception as error:
            text = str(error) if isinstance(error, InputError) else traceback.format_exc()
            write_text(task.folder / ERROR, text.rstrip() + "\n")
            report.send("failed", text.rstrip().splitlines()[-1])
        else:
            report.send("finished", f"{time.perf_counter() - start:.0f} s")
        # frees memory for the other workers on the device
        gc.collect()
        torch.cuda.empty_cache()
        return True


class _Reporter:
    """Reports the progress of a task to the watching process, a few times per second."""

    def __init__(self, pipe: Connection | _LastEvent, task: Task) -> None:
        self.pipe, self.task, self.last = pipe, task, 0.0

    def __call__(self, title: str, done: int, total: int, /, **figures: float) -> None:
        now = time.monotonic()
        if now - self.last > REPORT_SECONDS:
            self.last = now
            self.send("running", f"{title} ({100 * done // max(total, 1)} %)")

    def send(self, state: str, text: str) -> None:
        try:
            self.pipe.send((Event(self.task.key, state, text), self.task.folder))
        except OSError:
            os._exit(1)  # the parent is gone, which is not a failure of the task


@contextlib.contextmanager
def _raise_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into an error, so that the workers are asked to stop too."""

    def stop(*_: object) -> None:
        raise Preempted("stopped; the same command continues")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _forget_failures(out: Path) -> None:
    """Remove the error files of earlier calls, so that their tasks are retried."""
    for kind in ("cells", "tuning", "references"):
        for error in list((out / kind).glob(f"**/{ERROR}")):
            error.unlink(missing_ok=True)


def forget_lost_first_stages(plan: Plan) -> None:
    """Remove results of first stages that have no weights (unpacked ones) where open cells start from them."""
    for cell in plan.untuned:
        first = cell.start
        if first is not None and not (first.run / "checkpoints").is_dir() and not is_finished(cell):
            first.result.unlink(missing_ok=True)


def _pack(plan: Plan, watch: Watch) -> None:
    """Pack the training images, so that several workers do not do it at the same time."""

    def report(title: str, done: int, total: int, /, **figures: float) -> None:
        watch(Event("data", "running", f"{title}: {done} of {total}"))

    for config in _data_configs(plan):
        if config.images is not None:
            open_data(config, report)
            watch(Event("data", "finished", "packed"))


def data_files(plan: Plan) -> Iterator[Path]:
    """Yield the image files that a benchmark reads, if they exist: a finished benchmark needs none."""
    datasets = [(dataset.images, dataset.masks) for dataset in plan.matrix.datasets]
    for images, masks in [*datasets, *((data.images, data.masks) for data in _data_configs(plan))]:
        with contextlib.suppress(InputError):
            if images is not None:
                yield from open_source(images, masks).files()


def _data_configs(plan: Plan) -> list[DataConfig]:
    configs = {cell.config.data.model_dump_json(): cell.config.data for cell in [*plan.trials, *plan.untuned]}
    return list(configs.values())


def _environments(plan: Plan, jobs: int) -> list[dict[str, str]]:
    """Return the environment of every worker: a share of the cores, and one GPU where there are any."""
    devices = [{}] if plan.untuned[0].config.engine.accelerator == "cpu" else _devices()
    environments = [device for device in devices for _ in range(jobs)]
    share = str(max(1, cores() // len(environments)))
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": share}
    return [{**variables, **threads, SHARE: share} for variables in environments]


def _devices() -> list[dict[str, str]]:
    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",")[:count] if visible else [str(i) for i in range(count)]
    return [{"CUDA_VISIBLE_DEVICES": name} for name in names] or [{}]
