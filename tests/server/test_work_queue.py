"""Order of items and wake-up of threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from citadel.server.work_queue import WorkQueue
from tests.support.serving import wait_until


def sleeping(queue: WorkQueue[str]) -> int:
    return len(queue._sleepers)


def test_items_are_first_in_first_out() -> None:
    queue = WorkQueue[str](threads=1)
    for item in "abc":
        queue.put(item)
    assert [queue.get(), queue.get(), queue.get_nowait(), queue.get_nowait()] == ["a", "b", "c", None]


def test_put_wakes_one_sleeping_thread() -> None:
    queue = WorkQueue[str](threads=2)
    with ThreadPoolExecutor(2) as pool:
        results = [pool.submit(queue.get) for _ in range(2)]
        wait_until(lambda: sleeping(queue) == 2)
        assert queue.put("a", wake=False)  # all threads sleep, so it wakes one
        assert sleeping(queue) == 1
        wait_until(lambda: any(one.done() for one in results))
        assert not queue.put("b", wake=False)  # one thread is awake
        assert sleeping(queue) == 1 and len(queue) == 1
        assert queue.wake() and sleeping(queue) == 0
        assert {one.result(30) for one in results} == {"a", "b"}
        assert not queue.wake()  # the queue is empty


def test_awake_thread_takes_an_item_put_without_wake() -> None:
    queue = WorkQueue[str](threads=1)
    assert not queue.put("a", wake=False)
    assert queue.get() == "a"


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 4))
def test_no_item_is_lost_and_no_thread_sleeps_forever(wakes: list[bool], threads: int) -> None:
    queue, taken, lock = WorkQueue[int](threads), list[int](), threading.Lock()

    def work() -> None:
        while (item := queue.get()) >= 0:
            with lock:
                taken.append(item)

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(work) for _ in range(threads)]
        for number, wake in enumerate(wakes):
            queue.put(number, wake)
        for _ in range(threads):
            queue.put(-1)
        for one in running:
            one.result(30)
    assert sorted(taken) == list(range(len(wakes)))
