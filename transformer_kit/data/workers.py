"""A map over processes that keeps order and holds only a few items at a time.

Each worker is `python -m transformer_kit.data.workers` behind two pipes. Unlike multiprocessing it neither forks a
process whose threads hold locks nor imports the caller's main module, so it works from scripts, notebooks and `-c`.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, islice
from typing import Any, TypeVar

from transformer_kit.errors import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_map(call: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """`map(call, items)` on `workers` processes; in this process when one worker or one item is enough.

    Args:
        call: a callable that can be pickled.
    """
    iterator = iter(items)
    first = list(islice(iterator, 2))
    if workers == 1 or len(first) < 2:
        yield from map(call, chain(first, iterator))
        return
    started = [_Worker(call) for _ in range(workers)]
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    for worker in started:
        idle.put(worker)

    def run(item: Item) -> Any:
        worker = idle.get()
        try:
            return worker(item)
        finally:
            idle.put(worker)

    threads = ThreadPoolExecutor(workers)
    pending: deque[Future[Any]] = deque()
    try:
        for item in chain(first, iterator):
            pending.append(threads.submit(run, item))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for worker in started:
            worker.process.kill()
        threads.shutdown(wait=True, cancel_futures=True)
        for worker in started:
            worker.close()


class _Worker:
    def __init__(self, call: Any) -> None:
        # -P and PYTHONPATH: the child finds what this process finds, not what merely lies in the current folder.
        paths = os.pathsep.join(path for path in sys.path if path)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # signals to the whole group are the parent's to handle; it then stops this process
        )
        self._send(call)

    def __call__(self, item: Any) -> Any:
        assert self.process.stdout is not None
        self._send(item)
        try:
            result, error = pickle.load(self.process.stdout)
        except (EOFError, pickle.UnpicklingError):
            code = self.process.wait()
            raise DataError(f"a worker process ended early (exit code {code}); try data.workers=1") from None
        if error is not None:
            raise error
        return result

    def _send(self, value: Any) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the child is gone; reading its answer says so
            pickle.dump(value, self.process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
            self.process.stdin.flush()

    def close(self) -> None:
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not reach the pipe of answers
    call = pickle.load(sys.stdin.buffer)
    while True:
        try:
            item = pickle.load(sys.stdin.buffer)
        except (EOFError, pickle.UnpicklingError):
            return  # the parent has gone, perhaps in the middle of an item
        try:
            answer: tuple[Any, Exception | None] = (call(item), None)
        except Exception as error:
            answer = (None, error)
        pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
        answers.flush()


if __name__ == "__main__":
    _serve()
