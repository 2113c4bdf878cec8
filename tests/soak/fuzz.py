"""Fuzzing the readers: `python -m tests.soak.fuzz --cases 10000`. Every damaged file is read, or refused in one line.

Cases are functions of their number and the seed. They run in processes of their own, whose memory is limited and
which are killed when a case takes too long, so that crashes, hangs and blow-ups are counted and do no harm.
"""

import argparse
import contextlib
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch

from densecal.errors import InputError
from tests.soak.attacks import attack_readers
from tests.soak.readers import Reader, readers, write_case, write_files

MEMORY = 3 << 30
"""Bytes that a case may allocate: an image of the largest size allowed takes a third of it."""
PEAK = 3 << 29
"""Bytes by which a case may raise the memory in use: an image of the largest size allowed takes two thirds of it."""
SECONDS = 120.0
"""Time limit of a case in seconds; the slowest takes two on a quiet machine."""
LONGEST_MESSAGE = 2000

READ, REFUSED = "read", "refused"


@dataclass
class Outcomes:
    """Outcomes of the cases, by reader; everything but read and refused is a failure."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, reader: str, number: int, outcome: str, detail: str) -> None:
        self.counts.setdefault(reader, Counter())[outcome] += 1
        if outcome not in (READ, REFUSED):
            self.failures.append(f"case {number} ({reader}): {outcome}: {detail}")

    def table(self) -> str:
        kinds = sorted({kind for counts in self.counts.values() for kind in counts} | {READ, REFUSED})
        rows = [["reader", "cases", *kinds]]
        rows += [[name, sum(c.values()), *(c[kind] for kind in kinds)] for name, c in self.counts.items()]
        totals = sum(self.counts.values(), Counter())
        rows.append(["all", sum(totals.values()), *(totals[kind] for kind in kinds)])
        return "\n".join(f"{row[0]:24}" + "".join(f"{value!s:>10}" for value in row[1:]) for row in rows)


def check_whole(reader: Reader, scratch: Path) -> None:
    """Check that a reader reads some whole files (not every image is a mask): refusing everything proves nothing."""
    read = 0
    for number, files in enumerate(reader.files):
        folder = scratch / f"{reader.name}-{number}"
        write_files(files, folder)
        with contextlib.suppress(InputError):
            reader.read(folder)
            read += 1
    if not read:
        raise AssertionError(f"{reader.name}: no whole file was read")


def run_case(reader: Reader, number: int, seed: int, folder: Path) -> tuple[str, str]:
    """Write a case into an empty folder and read it."""
    folder.mkdir()
    inside = folder / "case"
    write_case(reader, inside, random.Random(f"{seed}/{number}"))
    os.chdir(folder)
    before = _peak(reset=True)
    try:
        with warnings.catch_warnings(action="ignore"):
            reader.read(inside)
        outcome = READ, ""
    except InputError as error:
        outcome = (REFUSED, "") if len(str(error)) <= LONGEST_MESSAGE else ("long message", str(error)[:300])
        if "MemoryError" in str(error):
            outcome = "memory", str(error)
    except MemoryError:
        outcome = "memory", traceback.format_exc(limit=-3)
    except Exception as error:
        outcome = f"{type(error).__name__}", traceback.format_exc(limit=-6)
    if _peak() - before > PEAK:
        outcome = "memory", f"{_peak() - before:,} bytes more at the peak; {outcome[0]}"
    # a file outside the case's own folder, or one made by a payload, is an escape
    if os.listdir(folder) != ["case"] or list(folder.rglob("OWNED")):
        outcome = "escaped", str(os.listdir(folder))
    os.chdir("/")
    shutil.rmtree(folder)
    return outcome


def _peak(reset: bool = False) -> int:
    """Return the peak memory of this process since the last reset; 0 where Linux does not report it."""
    if sys.platform != "linux":
        return 0
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _work(scratch: Path, all_readers: list[Reader], numbers: range, seed: int, pipe: Connection) -> None:
    """A worker process: one case after the other, with limited memory."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # silence what C libraries print about damaged files
    torch.set_num_threads(1)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    limit = pages * resource.getpagesize() + MEMORY
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for number in numbers:
        reader = all_readers[number % len(all_readers)]
        outcome, detail = run_case(reader, number, seed, scratch / f"{os.getpid()}-{number}")
        pipe.send((number, outcome, detail))
    pipe.send(None)


@dataclass
class _Worker:
    numbers: range
    process: multiprocessing.Process
    pipe: Connection
    since: float


def fuzz(cases: int, seed: int = 0, jobs: int = 1, tell: bool = False) -> Outcomes:
    """Run cases.

    Args:
        cases: How many; they are dealt to the readers in turn.
        seed: Other seeds give other cases.
        jobs: Processes.
        tell: Print a line from time to time.

    Returns:
        Counts of their outcomes.
    """
    outcomes = Outcomes()
    with tempfile.TemporaryDirectory(prefix="densecal-fuzz-") as name:
        scratch = Path(name)
        (scratch / "examples").mkdir()
        all_readers = readers(scratch / "examples")
        all_readers += attack_readers(all_readers)
        for reader in all_readers:
            check_whole(reader, scratch)
        context = multiprocessing.get_context("fork")

        def start(numbers: range) -> _Worker:
            mine, other = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(scratch, all_readers, numbers, seed, other), daemon=True)
            process.start()
            other.close()
            return _Worker(numbers, process, mine, time.monotonic())

        def replace(worker: _Worker, outcome: str, detail: str) -> _Worker:
            """Count the case that a process was working on, and continue after it in another process."""
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()
            number = worker.numbers[0]
            outcomes.add(all_readers[number % len(all_readers)].name, number, outcome, detail)
            return start(worker.numbers[1:])

        workers = [start(range(job, cases, jobs)) for job in range(jobs)]
        done = 0
        while workers:
            wait([worker.pipe for worker in workers], timeout=1.0)
            for slot, worker in enumerate(workers):
                try:
                    while worker.pipe.poll():
                        answer = worker.pipe.recv()
                        if answer is None:
                            worker.process.join()
                            workers[slot] = None
                            break
                        number, outcome, detail = answer
                        outcomes.add(all_readers[number % len(all_readers)].name, number, outcome, detail)
                        worker.numbers, worker.since = worker.numbers[1:], time.monotonic()
                        done += 1
                        if tell and done % 1000 == 0:
                            print(f"{done:,} cases, {len(outcomes.failures)} failures", flush=True)
                except EOFError:
                    worker.process.join()
                    workers[slot] = replace(worker, "died", f"exit code {worker.process.exitcode}")
                    continue
                if workers[slot] is not None and time.monotonic() - worker.since > SECONDS:
                    workers[slot] = replace(worker, "hang", f"more than {SECONDS:.0f} s")
            workers = [worker for worker in workers if worker is not None]
    return outcomes


def main() -> None:
    """Fuzz, print the counts, and fail if a case did."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    start = time.monotonic()
    outcomes = fuzz(given.cases, given.seed, given.jobs, tell=True)
    for failure in outcomes.failures[:40]:
        print(failure)
    print(outcomes.table())
    print(f"{len(outcomes.failures)} failures; seed {given.seed}, {time.monotonic() - start:.0f} s")
    sys.exit(1 if outcomes.failures else 0)


if __name__ == "__main__":
    main()
