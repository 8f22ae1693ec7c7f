"""Files of lines: appended whole or not at all, read while they grow, mended at the end."""

import io
import os
import resource
import signal
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_nb.run import lines


def test_append_makes_the_file_and_returns_its_size(tmp_path):
    path = tmp_path / "f"
    assert lines.append(path, ["ab", "é"]) == 6
    assert lines.append(path, ["c"], sync=True) == 8
    assert path.read_bytes() == b"ab\n\xc3\xa9\nc\n"
    assert lines.append(path, []) == 8


def test_read_leaves_a_line_without_its_end_for_the_next_call(tmp_path):
    path = tmp_path / "f"
    assert lines.read(path) == ([], 0)
    assert lines.read(path, 5) == ([], 5)
    path.write_bytes(b"one\ntw")
    assert lines.read(path) == ([b"one"], 4)
    path.write_bytes(b"one\ntwo\n\nthree\n")
    assert lines.read(path, 4) == ([b"two", b"", b"three"], 15)
    assert lines.read(path, 15) == ([], 15)


def test_a_carriage_return_ends_no_line(tmp_path):
    (tmp_path / "f").write_bytes(b"a\rb\r\n\x0bc\n")
    assert lines.read(tmp_path / "f")[0] == [b"a\rb\r", b"\x0bc"]


@given(
    content=st.binary(max_size=60).map(lambda b: b.replace(b"\x00", b"\n")),
    size=st.integers(1, 7),
    skip=st.integers(0, 5),
)
def test_chunks_of_any_size_give_the_same_lines(content, size, skip):
    file = io.BytesIO(content)
    file.seek(skip)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_CHUNK_BYTES", size)
        parts = list(lines.chunks(file))
    rest = content[skip:]
    whole = rest[: rest.rfind(b"\n") + 1]
    assert [line for part, _ in parts for line in part] == whole.split(b"\n")[:-1]
    if parts:
        assert parts[-1][1] == skip + len(whole)


def test_short_writes_are_carried_on(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    lines.append(tmp_path / "f", ["hello", "world"])
    assert (tmp_path / "f").read_bytes() == b"hello\nworld\n"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_was_written_of_a_failed_append_is_taken_back(tmp_path, monkeypatch, error):
    path = tmp_path / "f"
    lines.append(path, ["before"])
    write = os.write
    parts = iter([4])

    def full(fd, data):
        for size in parts:
            return write(fd, data[:size])
        raise error

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(type(error)):
        lines.append(path, ["one", "two"])
    assert path.read_bytes() == b"before\n"
    monkeypatch.undo()
    lines.append(path, ["after"])
    assert path.read_bytes() == b"before\nafter\n"


def test_a_line_the_disk_did_not_take_to_heart_is_taken_back(tmp_path, monkeypatch):
    def fail(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        lines.append(tmp_path / "f", ["one"], sync=True)
    assert (tmp_path / "f").read_bytes() == b""


@pytest.mark.faults
def test_a_file_that_cannot_grow_ends_with_a_whole_line(tmp_path):
    """The kernel's own limit, in a process of its own: a partial write, then an error."""
    code = """
        import sys
        from pathlib import Path
        from autotune_nb.run import lines
        path = Path(sys.argv[1])
        count = 0
        try:
            while True:
                lines.append(path, ["x" * 99])
                count += 1
        except OSError as error:
            print(count, error.errno)
    """

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1050, 1050))

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "f")],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["10", "27"]  # EFBIG
    assert (tmp_path / "f").read_bytes() == (b"x" * 99 + b"\n") * 10


@pytest.mark.parametrize("content", [b"", b"a\n", b"a\nb\n", b"\n"])
def test_a_whole_file_is_left_alone(tmp_path, content):
    (tmp_path / "f").write_bytes(content)
    assert lines.mend_tail(tmp_path / "f", lambda _: False) == ""
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == content


def test_a_missing_file_needs_no_mending(tmp_path):
    assert lines.mend_tail(tmp_path / "f", lambda _: True) == ""


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize("before", [b"", b"a\n", b"a\nbcd\n"])
def test_a_torn_tail_is_moved_aside(tmp_path, monkeypatch, before, size):
    monkeypatch.setattr(lines, "_CHUNK_BYTES", size)
    path = tmp_path / "f"
    path.write_bytes(before + b"torn")
    said = lines.mend_tail(path, lambda line: line != b"torn")
    assert path.read_bytes() == before
    (aside,) = tmp_path.glob("f.torn-*")
    assert aside.read_bytes() == b"torn"
    assert said == f"f: its last line was cut off; moved to {aside.name}"


def test_a_last_line_that_is_whole_but_for_its_end_is_completed(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"a\nb")
    assert "completed" in lines.mend_tail(path, lambda line: line == b"b")
    assert path.read_bytes() == b"a\nb\n"


def test_nothing_set_aside_is_overwritten(tmp_path):
    names = {lines.set_aside(tmp_path / "f", bytes([i])).name for i in range(20)}
    assert len(names) == 20
    assert sorted(p.read_bytes()[0] for p in tmp_path.iterdir()) == list(range(20))


def test_replace_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        lines.replace(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    monkeypatch.undo()
    lines.replace(path, b"new")
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
