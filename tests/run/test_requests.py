"""Requests: from any process at once, whatever another has left behind."""

import json
import multiprocessing
import os

import pytest

from autotune_nb.errors import InputError, RunError
from autotune_nb.run import requests as rq


@pytest.fixture
def path(tmp_path):
    return tmp_path / "requests.jsonl"


def test_there_and_back(path):
    made = [
        rq.append(path, "budget", trials=10, seconds=1.5),
        rq.append(path, "pause"),
        rq.append(path, "focus", tasks=(0, 2)),
        rq.append(path, "focus", tasks=()),
        rq.append(path, "focus"),
        rq.append(path, "stop"),
    ]
    read, end = rq.read(path)
    assert read == made
    assert end == path.stat().st_size
    assert rq.read(path, end) == ([], end)
    later = rq.append(path, "resume")
    assert rq.read(path, end)[0] == [later]
    assert len({request.id for request in [*made, later]}) == 7


def test_a_missing_file_holds_no_request(path):
    assert rq.read(path) == ([], 0)


def test_an_unknown_wish_is_not_written(path):
    with pytest.raises(InputError, match=r"'sleep'.*pause"):
        rq.append(path, "sleep")
    assert not path.exists()


GOOD = {"id": "a", "wish": "pause", "time": 1.0}


@pytest.mark.parametrize(
    "line",
    [
        b"garbage",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps({**GOOD, "wish": "sleep"}).encode(),
        json.dumps({**GOOD, "time": "now"}).encode(),
        json.dumps({**GOOD, "trials": "many"}).encode(),
        b'{"id":"a","wish":"budget","time":1,"trials":1e999}',
        b'{"id":"a","wish":"budget","time":1,"seconds":NaN}',
        b'{"id":"a","wish":"budget","time":1,"seconds":1e999}',
        b'{"id":"a","wish":"focus","time":1,"tasks":3}',
        b'{"wish":"pause","time":1}',
    ],
)
def test_damage_of_one_writer_stops_no_other(path, line):
    before = rq.append(path, "pause")
    with path.open("ab") as file:
        file.write(line + b"\n")
    after = rq.append(path, "stop")
    assert rq.read(path)[0] == [before, after]


def test_a_torn_line_takes_no_other_along(path):
    whole = rq.append(path, "budget", trials=123)
    text = path.read_bytes()
    for cut in range(len(text) + 1):
        path.write_bytes(text[:cut])
        after = rq.append(path, "stop")
        read = rq.read(path)[0]
        # only its own end may be missing of a line that still counts
        assert read == ([whole, after] if cut >= len(text) - 1 else [after])


def test_a_full_disk_is_told_and_takes_nothing_of_others_back(path, monkeypatch):
    first = rq.append(path, "pause")
    write = os.write

    other = []

    def full(fd, data):
        monkeypatch.setattr(os, "write", write)
        written = write(fd, data[:20])
        other.append(rq.append(path, "resume"))  # another process, when there is room again
        return written

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RunError, match=r"stop cannot be asked for \(No space left"):
        rq.append(path, "stop")
    assert rq.read(path)[0] == [first, *other]
    assert len(other) == 1


def test_a_directory_that_is_gone_is_told(tmp_path):
    with pytest.raises(RunError, match="No such file"):
        rq.append(tmp_path / "gone" / "requests.jsonl", "pause")


def _ask(path, count):
    for _ in range(count):
        rq.append(path, "budget", trials=os.getpid())


def test_several_processes_at_once_lose_nothing(path):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_ask, args=(path, 25)) for _ in range(4)]
    for worker in workers:
        worker.start()
    seen, offset = [], 0
    while any(worker.is_alive() for worker in workers):
        found, offset = rq.read(path, offset)
        seen += found
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    seen += rq.read(path, offset)[0]
    assert seen == rq.read(path)[0]
    assert len({request.id for request in seen}) == 100
    assert {w.pid for w in workers} == {request.trials for request in seen}
