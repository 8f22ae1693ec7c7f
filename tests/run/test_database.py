"""TVM's database as text: what is a record, what is not, and its one line."""

import json
import math

import pytest

from autotune_nb.run import database


def line(task=0, times=(1e-3,), trace=()):
    return database.record_line(task, list(trace), times, {"kind": "llvm"}, [])


def test_a_record_is_one_line_and_read_back(tmp_path):
    text = database.record_line(2, [["a\nb", "é"]], [1e-3, 3e-3], {"kind": "llvm"}, ["TENSOR"])
    assert "\n" not in text
    assert json.loads(text) == [2, [[["a\nb", "é"]], [1e-3, 3e-3], {"kind": "llvm"}, ["TENSOR"]]]
    database.append_record(tmp_path, text)
    (record,), bad = database.read_records(tmp_path)
    assert bad == []
    assert record.line == text
    assert record.digest == database.digest(text)
    assert record.task == 2
    assert record.latency_s == pytest.approx(2e-3)


def test_a_failed_trial_has_no_latency(tmp_path):
    text = line(times=[])
    assert json.loads(text)[1][1] == [1e10]
    database.append_record(tmp_path, text)
    assert database.read_records(tmp_path)[0][0].latency_s is None


def test_digests_tell_lines_apart():
    assert database.digest(line()) == database.digest(line())
    assert len({database.digest(line(trace=[i])) for i in range(100)}) == 100
    assert len(database.digest(line())) == 16


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"garbage",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"[0,[[],[0.001],{}]]",
        b"[0,[[],[0.001],{},[],1]]",
        b'["0",[[],[0.001],{},[]]]',
        b"[0.0,[[],[0.001],{},[]]]",
        b"[true,[[],[0.001],{},[]]]",
        b"[0,[[],0.001,{},[]]]",
        b"[0,[[],null,{},[]]]",
        b'[0,[[],["0.001"],{},[]]]',
        b"[0,[[],[null],{},[]]]",
        b"[0,[[],[NaN],{},[]]]",
        b"[0,[[],[1e999],{},[]]]",
        b"[0,[[],[-0.001],{},[]]]",
        b"[0,[[],[0.0],{},[]]]",
        b"[0,[[],[0.001],{},[]]] x",
        b"[" * 100_000,
    ],
)
def test_what_is_no_record(tmp_path, raw):
    assert database.parse_record(raw) is None
    good = line()
    (tmp_path / database.RECORD_FILE).write_bytes(raw + b"\n" + good.encode() + b"\n")
    records, bad = database.read_records(tmp_path)
    assert [r.line for r in records] == [good]
    assert bad == [raw]


def test_means_are_exact():
    record = database.parse_record(line(times=[0.1] * 10).encode())
    assert record.latency_s == math.fsum([0.1] * 10) / 10


def test_workloads(tmp_path):
    assert database.read_workloads(tmp_path) == []
    database.append_workloads(tmp_path, [["1", "QQ=="], ["2", "Qg=="]])
    assert database.read_workloads(tmp_path) == ['["1","QQ=="]', '["2","Qg=="]']
    assert database.read_records(tmp_path) == ([], [])
