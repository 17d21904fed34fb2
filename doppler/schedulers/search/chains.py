"""Runs the chains of a search on threads, chunk by chunk, within the budget."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Protocol

from doppler.schedulers.anytime import Run
from doppler.schedulers.search.state import State, best_of
from doppler.simulator.threads import available_cores

WATCH_SECONDS = 0.1
_WORK_PER_CHUNK = 1_000_000
"""Ops plus edges per chunk: some 5 ms of simulation, 50 to 100 ms where events must be queued."""
_CHUNKS_PER_BUDGET = 200


class Chain(Protocol):
    """A search that depends on nothing but its seed and on how much of the budget is spent."""

    @property
    def best(self) -> State:
        """Holds the best placement so far."""

    def advance(self, fraction: float, evaluations: int) -> int:
        """Searches on.

        Args:
            fraction: share of the budget that is spent.
            evaluations: how many to make.

        Returns:
            How many were made; fewer if there is nothing left to try.
        """


def chunk_size(run: Run, num_chains: int) -> int:
    """Evaluations of a chunk; depends on the problem and the budget, never on the machine."""
    graph = run.problem.graph
    chunk = max(16, _WORK_PER_CHUNK // (graph.num_ops + len(graph.succ_ops)))
    if run.budget_evals is not None:
        chunk = min(chunk, max(1, run.budget_evals // num_chains // _CHUNKS_PER_BUDGET))
    return chunk


def run_chains(run: Run, chains: Sequence[Chain], num_threads: int | None) -> None:
    """Advances all chains until the budget is spent, reporting to `run`.

    With a budget of evaluations alone every chain gets its share and sees only what it has spent
    itself, so that the result does not depend on threads. Ctrl-C ends the search early and sets
    `run.interrupted`.

    Args:
        run: the search.
        chains: at least one.
        num_threads: most threads to use, all available cores where None.
    """
    shares = _shares(run, len(chains))
    chunk = chunk_size(run, len(chains))
    waiting = deque(range(len(chains)))
    spent = [0] * len(chains)
    stop = threading.Event()

    def fraction(index: int) -> float:
        if shares is None:
            spent_here = 0.0
        else:
            spent_here = spent[index] / shares[index] if shares[index] else 1.0
        clock = 0.0 if run.budget_s is None else run.seconds / run.budget_s
        return min(1.0, max(spent_here, clock))

    def work() -> None:
        while not stop.is_set():
            try:
                index = waiting.popleft()
            except IndexError:
                return
            done = fraction(index)
            if done >= 1.0:
                continue
            wanted = chunk if shares is None else min(chunk, shares[index] - spent[index])
            chain = chains[index]
            made = chain.advance(done, wanted)
            spent[index] += made
            run.record(*best_of(chain.best), made)
            if made == wanted:
                waiting.append(index)

    threads = min(num_threads or available_cores(), len(chains))
    with ThreadPoolExecutor(threads, thread_name_prefix="doppler-search") as pool:
        futures = [pool.submit(work) for _ in range(threads)]
        try:
            while wait(futures, WATCH_SECONDS, FIRST_EXCEPTION).not_done:
                if any(future.done() and future.exception() for future in futures):
                    break
                if run.watch is not None:
                    run.watch(run)
        except KeyboardInterrupt:
            run.interrupted = True
        finally:
            stop.set()
    for future in futures:
        future.result()
    if run.watch is not None and not run.interrupted:
        try:
            run.watch(run)
        except KeyboardInterrupt:
            run.interrupted = True


def _shares(run: Run, num_chains: int) -> list[int] | None:
    if run.budget_evals is None:
        return None
    each, more = divmod(max(0, run.budget_evals - run.evaluations), num_chains)
    return [each + (index < more) for index in range(num_chains)]
