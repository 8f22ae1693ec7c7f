"""The manifest: written whole, read back exactly, refused with a reason."""

import json

import pytest

from autotune_nb.errors import RunError
from autotune_nb.run.manifest import FILE, FORMAT, Manifest, Options
from autotune_nb.run.records import TaskInfo


def test_there_and_back(tmp_path, make_manifest):
    tasks = (
        TaskInfo(
            id=0,
            name="é",
            weight=2,
            flops=1.5e9,
            workload_hash="18446744073709551615",
            operators=("conv2d", "add"),
            shapes=("float32[1, 2]",),
            trivial=True,
        ),
        TaskInfo(id=1, name="b", weight=1, flops=0.0, workload_hash="2"),
    )
    manifest = make_manifest(tasks, options=Options(seed=3, batch_size=7), read_only=True)
    manifest.write(tmp_path)
    assert Manifest.read(tmp_path) == manifest
    assert [p.name for p in tmp_path.iterdir()] == [FILE]


def test_fields_of_a_later_version_of_the_same_format_are_left_out(tmp_path, make_manifest, tasks):
    manifest = make_manifest(tasks)
    manifest.write(tmp_path)
    value = json.loads((tmp_path / FILE).read_text())
    value["mood"] = "good"
    value["options"]["speed"] = 3
    value["tasks"][0]["colour"] = "red"
    (tmp_path / FILE).write_text(json.dumps(value))
    assert Manifest.read(tmp_path) == manifest


def test_options_that_were_not_there_yet_have_their_defaults(tmp_path, make_manifest, tasks):
    make_manifest(tasks).write(tmp_path)
    value = json.loads((tmp_path / FILE).read_text())
    del value["options"]["cool_down_ms"], value["read_only"]
    (tmp_path / FILE).write_text(json.dumps(value))
    assert Manifest.read(tmp_path) == make_manifest(tasks)


def test_a_later_format_asks_for_an_upgrade(tmp_path, make_manifest, tasks):
    make_manifest(tasks, format=FORMAT + 1).write(tmp_path)
    with pytest.raises(RunError, match=f"format {FORMAT + 1}.*upgrade autotune-nb"):
        Manifest.read(tmp_path)


def test_what_is_no_run_says_what_it_is(tmp_path):
    with pytest.raises(RunError, match="gone: no such run"):
        Manifest.read(tmp_path / "gone")
    with pytest.raises(RunError, match=r"not a run directory \(it has no manifest\.json\)"):
        Manifest.read(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="file: is a file"):
        Manifest.read(tmp_path / "file")
    (tmp_path / FILE).mkdir()
    with pytest.raises(RunError, match="cannot be read"):
        Manifest.read(tmp_path)


def test_a_manifest_cut_anywhere_is_refused(tmp_path, make_manifest, tasks):
    make_manifest(tasks[:1]).write(tmp_path)
    data = (tmp_path / FILE).read_bytes()
    for end in range(0, len(data), 5):
        (tmp_path / FILE).write_bytes(data[:end])
        with pytest.raises(RunError, match=r"manifest\.json"):
            Manifest.read(tmp_path)


def without(*names):
    def change(value):
        for name in names:
            del value[name]

    return change


@pytest.mark.parametrize(
    "change",
    [
        without("tasks"),
        without("format"),
        without("options"),
        without("network_fingerprint"),
        lambda v: v.update(tasks=3),
        lambda v: v.update(tasks=[None]),
        lambda v: v.update(tasks=v["tasks"][::-1]),
        lambda v: v.update(tasks=v["tasks"][1:]),
        lambda v: v["tasks"][0].pop("weight"),
        lambda v: v["tasks"][0].update(shapes=3),
        lambda v: v.update(options=[]),
        lambda v: v.update(format="one"),
        lambda v: v.update(format=None),
    ],
)
def test_a_damaged_manifest_is_told(tmp_path, make_manifest, tasks, change):
    make_manifest(tasks).write(tmp_path)
    value = json.loads((tmp_path / FILE).read_text())
    change(value)
    (tmp_path / FILE).write_text(json.dumps(value))
    with pytest.raises(RunError, match=r"manifest\.json: is damaged .*restore it"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("text", ["null", "[]", "3", "[" * 100_000, '"manifest"'])
def test_json_that_is_no_manifest_is_told(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(RunError, match=r"manifest\.json: (is damaged|cannot be read)"):
        Manifest.read(tmp_path)
