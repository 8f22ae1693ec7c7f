"""Where a run's time went, as its journal tells."""

from __future__ import annotations

from autotune_nb.run import events as ev

Interval = tuple[float, float]


def start_up(events: list[ev.Event], start: float) -> float:
    """Return the seconds from `start` to the first round."""
    return min((e.time - start for e in events if isinstance(e, ev.RoundStarted)), default=0.0)


def failure_kinds(events: list[ev.Event]) -> dict[str, int]:
    kinds: dict[str, int] = {}
    for event in events:
        if isinstance(event, ev.TrialDone) and event.error_kind:
            kinds[event.error_kind] = kinds.get(event.error_kind, 0) + 1
    return kinds


def worker_seconds(events: list[ev.Event]) -> dict[str, float]:
    """Return the seconds that workers spent, those in which a search was suspended included."""
    trials = [e for e in events if isinstance(e, ev.TrialDone)]
    return {
        "search": round(sum(e.search_s for e in events if isinstance(e, ev.RoundSearched)), 1),
        "build": round(sum(e.build_s for e in trials), 1),
        "link": 0.0,  # on CPUs nothing is linked; elsewhere it is part of the build
        "measure": round(sum(e.measure_s for e in trials), 1),
    }


def wall_shares(events: list[ev.Event], start: float, wall_s: float) -> dict[str, float]:
    """Return what the wall time of a run on a CPU went to; the shares add up to 1.

    A measurement ended when its trial was written, and excludes all else. A round was being built
    from the end of its search to its first measurement, measurements of others left out: builders
    rest only when nothing is queued, and a round that is built is measured at once. What is left
    of the searches is time in which they held up the rest.
    """
    measured: list[Interval] = []
    began: dict[int, float] = {}
    ended: dict[int, float] = {}
    searched: dict[int, float] = {}
    searches: list[Interval] = []
    for event in events:
        now = event.time - start
        if isinstance(event, ev.TrialDone):
            ended[event.round] = now
            if event.measure_s:
                measured.append((now - event.measure_s, now))
                began.setdefault(event.round, now - event.measure_s)
        elif isinstance(event, ev.RoundSearched):
            searched[event.round] = now
            searches.append((now - event.search_s, now))
    built = [
        (since, began.get(number, ended.get(number, since))) for number, since in searched.items()
    ]
    measuring = length(measured)
    building = length([*measured, *built]) - measuring
    searching = length([*measured, *built, *searches]) - measuring - building
    # a search is suspended while something is measured
    beside = length([*measured, *searches]) - measuring - searching
    return {
        "measuring": round(measuring / wall_s, 3),
        "building": round(building / wall_s, 3),
        "only searching": round(searching / wall_s, 3),
        "other": round(1 - (measuring + building + searching) / wall_s, 3),
        "searching beside builds (part of building)": round(beside / wall_s, 3),
    }


def length(intervals: list[Interval]) -> float:
    """Return the length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        if end > reached:
            total += end - max(begin, reached)
            reached = end
    return total
