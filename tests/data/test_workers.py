from __future__ import annotations

import operator
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest

from transformer_kit.data.workers import ordered_map
from transformer_kit.errors import DataError


def test_order_is_kept_and_few_items_are_held() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(40):
            taken += 1
            yield number

    results = ordered_map(partial(operator.mul, 3), items(), workers=2)
    assert next(results) == 0
    assert taken <= 7
    assert list(results) == [3 * number for number in range(1, 40)]


def test_work_is_done_by_other_processes_unless_one_is_enough() -> None:
    here = {os.getpid()}
    assert set(ordered_map(_pid, range(5), workers=1)) == here
    assert set(ordered_map(_pid, [1], workers=2)) == here
    assert list(ordered_map(_pid, [], workers=2)) == []
    assert here.isdisjoint(ordered_map(operator.methodcaller("getpid"), [_Os()] * 3, workers=2))


class _Os:
    """Stands in for the module `os`, which cannot be pickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return __import__, ("os",)


def _pid(_: int) -> int:
    return os.getpid()


def test_errors_come_back_and_leave_no_process() -> None:
    with pytest.raises(ZeroDivisionError):
        list(ordered_map(partial(operator.floordiv, 7), [1, 0, 2], workers=2))
    with pytest.raises(DataError, match="a worker process ended early"):
        list(ordered_map(os._exit, [9, 9, 9], workers=2))
    children = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True)
    assert "transformer_kit.data.workers" not in children.stdout


def test_a_script_without_main_guard_and_from_stdin_works() -> None:
    script = (
        "import operator\n"
        "from functools import partial\n"
        "from transformer_kit.data.workers import ordered_map\n"
        "print(list(ordered_map(partial(operator.add, 1), range(5), workers=2)))\n"
    )
    done = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[1, 2, 3, 4, 5]\n", "")


def test_a_worker_whose_parent_went_in_the_middle_of_an_item_ends_quietly() -> None:
    whole = pickle.dumps(len) + pickle.dumps("abc")
    done = subprocess.run(
        [sys.executable, "-m", "transformer_kit.data.workers"], input=whole[:-4], capture_output=True, check=True
    )
    assert done.stderr == b""
