"""Runs as archives: passed on and back, and archives that want to do harm."""

import gzip
import io
import json
import os
import resource
import tarfile

import pytest

from autotune_nb.errors import InputError, RunError
from autotune_nb.run import archive, database
from autotune_nb.run.archive import export_database, export_run, import_archive, is_archive
from autotune_nb.run.directory import RunDirectory, RunWriter
from autotune_nb.run.imports import import_run


@pytest.fixture
def full(run):
    """Return a run with all kinds of files."""
    database.append_workloads(run.path, [[str(100 + i), "AAAA"] for i in range(3)])
    run.write()
    for name in ("network/tasks/0.py", "artifacts/toy.so", "requests.jsonl"):
        path = run.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"content of {name}".encode())
    (run.path / "journal.checkpoint").write_text("a cache")
    (run.path / ".draft.1.new").write_text("half a file")
    return run


def contents(path):
    return {
        p.relative_to(path).as_posix(): p.read_bytes()
        for p in path.rglob("*")
        if p.is_file() and p.name not in ("lock", "lock.holder")
    }


def passed_on(path):
    left = {"journal.checkpoint", ".draft.1.new"}
    return {name: data for name, data in contents(path).items() if name not in left}


@pytest.mark.parametrize("name", ["run.tar.gz", "run.tgz"])
def test_there_and_back(full, tmp_path, name):
    state = RunDirectory(full.path).poll()
    packed = export_run(full.path, tmp_path / name)
    assert is_archive(packed)
    back = import_archive(packed, tmp_path / "back")
    assert back.poll() == state
    assert contents(back.path) == passed_on(full.path)
    with RunWriter(back.path) as writer:  # it can be tuned on
        assert writer.state.recovered == ()


def test_to_a_directory(full, tmp_path):
    export_run(full.path, tmp_path / "copy")
    assert contents(tmp_path / "copy") == passed_on(full.path)
    assert RunDirectory(tmp_path / "copy").poll() == RunDirectory(full.path).poll()


def test_the_same_run_gives_the_same_archive(full, tmp_path):
    first = export_run(full.path, tmp_path / "a.tar.gz").read_bytes()
    for path in full.path.rglob("*"):
        os.utime(path, (5, 5))
    assert export_run(full.path, tmp_path / "b.tar.gz").read_bytes() == first


def test_a_run_that_is_being_tuned_can_be_exported(full, tmp_path):
    with RunWriter(full.path) as writer:
        writer.commit([full.teller.start(), full.teller.open(2)])
        full.trial(writer, 2, 1e-4)
        with full.journal.open("ab") as file:
            file.write(b'{"event":"tri')  # half a line at this moment
        export_run(full.path, tmp_path / "run.tar.gz")
    back = import_archive(tmp_path / "run.tar.gz", tmp_path / "back")
    assert back.poll().tasks[2].best_latency_s == 1e-4
    with RunWriter(back.path) as writer:
        assert writer.state.trials == 6


def test_a_database_for_plain_tvm(full, tmp_path):
    with full.records.open("ab") as file:
        file.write(b"garbage\n[99,[[],[1.0],{},[]]]\n[0,[")
    export_database(full.path, tmp_path / "db")
    assert sorted(p.name for p in (tmp_path / "db").iterdir()) == [
        database.RECORD_FILE,
        database.WORKLOAD_FILE,
    ]
    lines = (tmp_path / "db" / database.RECORD_FILE).read_text().splitlines()
    assert [json.loads(line)[0] for line in lines] == [0, 0, 0, 1, 1]
    export_database(full.path, tmp_path / "db.tar.gz")
    with tarfile.open(tmp_path / "db.tar.gz") as packed:
        assert len(packed.getnames()) == 2


def test_no_database_is_told(run, tmp_path):
    with pytest.raises(RunError, match="no database to export"):
        export_database(run.path, tmp_path / "db")


def test_what_is_there_is_not_written_over(full, tmp_path):
    taken = tmp_path / "taken.tar.gz"
    taken.write_text("mine")
    with pytest.raises(RunError, match="exists already"):
        export_run(full.path, taken)
    assert taken.read_text() == "mine"
    with pytest.raises(RunError, match="holds a run already"):
        import_archive(export_run(full.path, tmp_path / "a.tar.gz"), full.path)


def test_no_link_is_followed_on_export(full, tmp_path):
    (full.path / "artifacts" / "secret").symlink_to("/etc/hostname")
    with pytest.raises(RunError, match="is a link"):
        export_run(full.path, tmp_path / "run.tar.gz")
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(("gz", ".new"))] == []


def test_a_full_disk_leaves_nothing(full, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, hard))
    try:
        with pytest.raises(RunError, match="cannot be written"):
            export_run(full.path, tmp_path / "run.tar.gz")
        with pytest.raises(RunError, match="cannot be written"):
            export_run(full.path, tmp_path / "copy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [p.name for p in tmp_path.iterdir()] == ["run0"]


def test_an_archive_says_its_name_itself(full, tmp_path):
    packed = export_run(full.path, tmp_path / "run.tar.gz")
    with pytest.raises(InputError, match="says its name"):
        import_run(packed, tmp_path / "back", weights=[1])
    assert import_run(packed, tmp_path / "back").poll().trials == 5
    with pytest.raises(RunError, match="is a run already"):
        import_run(full.path, tmp_path / "other")


# Archives that want to do harm.


def member(name, data=b"x", kind=tarfile.REGTYPE, link="", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.type = kind
    info.linkname = link
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def pack(path, *members, fmt=tarfile.PAX_FORMAT):
    with tarfile.open(path, "w:gz", format=fmt) as packed:
        for info, data in members:
            packed.addfile(info, io.BytesIO(data))
    return path


HOSTILE = {
    "parent": [member("run/../../escaped")],
    "parent alone": [member("../escaped")],
    "parent inside": [member("run/a/../../../escaped")],
    "absolute": [member("/proc/escaped")],
    "dot": [member("run/./escaped")],
    "double slash": [member("run//escaped")],
    "backslash": [member("run\\..\\escaped")],
    "drive": [member("C:escaped")],
    "escape sequence": [member("run/\x1b[31mred")],
    "newline": [member("run/a\nb")],
    "reordering": [member("run/a\u202eb")],
    "not UTF-8": [member("run/\udcff")],
    "hidden": [member("run/.bashrc")],
    "hidden folder": [member("run/.git/hooks/post-checkout")],
    "lock": [member("run/lock")],
    "holder": [member("run/lock.holder")],
    "cache": [member("run/journal.checkpoint")],
    "no folder": [member("manifest.json")],
    "two folders": [member("run/a"), member("other/b")],
    "too deep": [member("run/" + "/".join("abcdefghijk"))],
    "long name": [member("run/" + "n" * 300)],
    "symbolic link": [member("run/link", b"", tarfile.SYMTYPE, "/etc/passwd")],
    "through a link": [
        member("run/network", b"", tarfile.SYMTYPE, "/proc"),
        member("run/network/escaped"),
    ],
    "hard link": [member("run/link", b"", tarfile.LNKTYPE, "/etc/passwd")],
    "device": [member("run/device", b"", tarfile.CHRTYPE)],
    "fifo": [member("run/fifo", b"", tarfile.FIFOTYPE)],
    "twice": [member("run/a"), member("run/a")],
    "file as folder": [member("run/a"), member("run/a/b")],
    "folder as file": [member("run/a/b"), member("run/a")],
    "no manifest": [member("run/journal.jsonl", b"")],
    "empty": [],
    "manifest is a folder": [member("run/manifest.json/a")],
    "broken manifest": [member("run/manifest.json", b"{}")],
    "nested manifest": [member("run/manifest.json", b"[" * 100_000)],
    "pickle": [member("run/manifest.json", b"\x80\x04\x95K.")],
}


@pytest.mark.parametrize("fmt", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_are_refused_and_leave_nothing(tmp_path, name, fmt):
    inner = tmp_path / "inner"
    inner.mkdir()
    try:
        packed = pack(tmp_path / "bad.tar.gz", *HOSTILE[name], fmt=fmt)
    except UnicodeEncodeError:
        pytest.skip("this format cannot hold it")
    with pytest.raises(RunError) as error:
        import_archive(packed, inner / "run")
    assert str(error.value).isprintable()
    assert list(inner.iterdir()) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.tar.gz", "inner"]


def test_too_much_is_refused_before_it_is_written(full, tmp_path, monkeypatch):
    packed = export_run(full.path, tmp_path / "run.tar.gz")
    with pytest.raises(RunError, match="unpacks to more"):
        import_archive(packed, tmp_path / "back", max_bytes=100)
    monkeypatch.setattr(archive, "_MAX_MEMBERS", 3)
    with pytest.raises(RunError, match="more than 3 members"):
        import_archive(packed, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_bomb_is_not_unpacked(tmp_path):
    packed = tmp_path / "bomb.tar.gz"
    with tarfile.open(packed, "w:gz") as file:
        file.addfile(*[member("run/zeros", b"\0" * (200 << 20))[0], io.BytesIO(bytes(200 << 20))])
    assert packed.stat().st_size < 1 << 20
    with pytest.raises(RunError, match="unpacks to more"):
        import_archive(packed, tmp_path / "run", max_bytes=100 << 20)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE])
def test_a_header_that_claims_gigabytes_is_not_read(tmp_path, kind):
    info = tarfile.TarInfo("run/x")
    info.type, info.size = kind, 3 << 30
    packed = tmp_path / "bad.tar.gz"
    packed.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(4096)))
    with pytest.raises(RunError, match=r"damaged archive .*too long"):
        import_archive(packed, tmp_path / "run")


def test_what_follows_the_end_is_bounded(full, tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "_HEADERS_BYTES", 1 << 20)
    packed = export_run(full.path, tmp_path / "run.tar.gz")
    data = gzip.decompress(packed.read_bytes())
    packed.write_bytes(gzip.compress(data + bytes(8 << 20)))
    with pytest.raises(RunError, match="longer than its members"):
        import_archive(packed, tmp_path / "back", max_bytes=2 << 20)


@pytest.mark.parametrize("where", [10, 300, -9, -4])
def test_damage_is_noticed(full, tmp_path, where):
    packed = export_run(full.path, tmp_path / "run.tar.gz")
    data = bytearray(packed.read_bytes())
    data[where] ^= 0xFF
    packed.write_bytes(bytes(data))
    with pytest.raises(RunError):
        import_archive(packed, tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("part", [0.3, 0.9, 0.999])
def test_a_cut_archive_is_refused(full, tmp_path, part):
    packed = export_run(full.path, tmp_path / "run.tar.gz")
    data = packed.read_bytes()
    packed.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(RunError):
        import_archive(packed, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_missing_archive_is_told(tmp_path):
    with pytest.raises(RunError, match="cannot be read"):
        import_archive(tmp_path / "none.tar.gz", tmp_path / "back")
    assert not (tmp_path / "back").exists()
