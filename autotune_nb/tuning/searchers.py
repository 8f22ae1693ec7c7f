"""The search workers: each owns some tasks, and does one thing after the other."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection
from typing import Any

from autotune_nb.tuning.plan import Plan
from autotune_nb.tuning.process import Worker, Workers
from autotune_nb.tuning.rounds import Round

_TIMEOUT_S = 600.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    what: str
    round: Round
    arguments: tuple[Any, ...]


class Searchers:
    """Queues of jobs for the search workers; the pipeline takes their answers.

    A worker that was restarted opens the run again before its next job, and then knows what the
    database knows, and what was found in this session: some of that is not measured yet.
    """

    def __init__(self, workers: Workers, plan: Plan, *, directory: str, target: str) -> None:
        self._owners = plan.owners
        self._module = plan.modules.search
        self._opening = (directory, target, plan.search)
        self._workers = workers.add("search", plan.searchers)
        self._opened: dict[int, int] = {}
        self._found: dict[int, list[str]] = {}
        self._waiting: dict[int, collections.deque[_Job]] = {
            worker.number: collections.deque() for worker in self._workers
        }

    def propose(self, started: Round, count: int) -> None:
        """Ask for `count` candidates for a round."""
        job = _Job(what="propose", round=started, arguments=(started.task, count))
        self._waiting[self._owner(started.task).number].append(job)

    def found(self, searched: Round) -> None:
        """Take note of a round's candidates: no search may find them again."""
        self._found.setdefault(searched.task, []).extend(item.key for item in searched.items)

    def learn(self, finished: Round) -> None:
        """Tell a round's results, before the next proposal, so that it can use them."""
        job = _Job(what="learn", round=finished, arguments=(finished.task, finished.results))
        self._waiting[self._owner(finished.task).number].appendleft(job)

    def share(self, learnt_by: Worker, finished: Round, lesson: bytes) -> None:
        """Tell the other workers what one has learnt of a round."""
        for worker in self._workers:
            if worker is not learnt_by and lesson:
                job = _Job(what="hear", round=finished, arguments=(lesson,))
                self._waiting[worker.number].appendleft(job)

    def serve(self) -> None:
        """Give idle workers their next job."""
        for worker in self._workers:
            if worker.busy or worker.stopped:
                continue
            if self._opened.get(worker.number) != worker.generation:
                self._opened[worker.number] = worker.generation
                found = {t: k for t, k in self._found.items() if self._owner(t) is worker}
                worker.submit(
                    ("open", None),
                    f"{self._module}:open_run",
                    *self._opening,
                    found,
                    timeout_s=_TIMEOUT_S,
                )
            elif self._waiting[worker.number]:
                job = self._waiting[worker.number].popleft()
                worker.submit(
                    (job.what, job.round),
                    f"{self._module}:{job.what}",
                    *job.arguments,
                    timeout_s=_TIMEOUT_S,
                )

    def not_opened(self, worker: Worker) -> list[Round]:
        """Take note that a worker could not open the run; return the rounds it was to search."""
        self._opened.pop(worker.number, None)
        waiting = self._waiting[worker.number]
        failed = [job.round for job in waiting if job.what == "propose"]
        waiting.clear()
        return failed

    def sharing(self, tasks: Collection[int]) -> set[int]:
        """Return all tasks that share a worker with one of `tasks`."""
        at_work = {self._owner(task).number for task in tasks}
        return {task for task in self._owners if self._owner(task).number in at_work}

    def _owner(self, task: int) -> Worker:
        return self._workers[self._owners[task]]
