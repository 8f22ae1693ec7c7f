"""Jobs of the tuner's workers that need no TVM and behave, or not, as the run's stub.json says.

``stub.json`` maps a task's id, or ``default``, to its settings: ``space`` (how many candidates it
has), ``search``, ``build`` and ``measure`` (how each of them behaves; candidate n takes entry n of
its list), and the seconds each takes. A measurement that ends leaves a line in ``ledger.txt``: what
the journal is held against.
"""

import ctypes
import json
import math
import os
import random
import time
from pathlib import Path

from autotune_nb.run import database
from autotune_nb.tuning.messages import Candidate

SETTINGS = {
    "space": 1_000_000,
    "search": ["ok"],
    "build": ["ok"],
    "measure": ["ok"],
    "search_s": 0.0,
    "build_s": 0.0,
    "measure_s": 0.0,
    "padding": 0,
}
LEDGER = "ledger.txt"
_run = {}
_held = {}


def key_of(task, number):
    return f"{task:04x}{number:012x}"


def latency_of(key):
    """The seconds a candidate takes: always the same ones."""
    return 1e-3 * (1 + 3 * random.Random(key).random())


def settings_of(directory, task):
    told = json.loads((Path(directory) / "stub.json").read_text())
    return SETTINGS | told.get("default", {}) | told.get(str(task), {})


# -- search


def open_run(directory, target, options, found):
    seen = {task: {int(key[4:], 16) for key in keys} for task, keys in found.items()}
    _run.update(directory=directory, target=json.loads(target), seen=seen, asked=0)
    for record in database.read_records(Path(directory))[0]:
        number = json.loads(record.line)[1][0][1]
        _run["seen"].setdefault(record.task, set()).add(number)


def propose(index, count):
    settings = settings_of(_run["directory"], index)
    _run["asked"] += 1
    time.sleep(settings["search_s"])
    behave(settings["search"][_run["asked"] % len(settings["search"])])
    seen = _run["seen"].setdefault(index, set())
    found = []
    number = 0
    while len(found) < count and number < settings["space"]:
        if number not in seen:
            seen.add(number)
            found.append(_candidate(index, number, settings))
        number += 1
    return found, settings["search_s"]


def _candidate(task, number, settings):
    told = {name: settings[name][number % len(settings[name])] for name in ("build", "measure")} | {
        name: settings[name] for name in ("build_s", "measure_s")
    }
    told["directory"] = _run["directory"]
    return Candidate(
        key=key_of(task, number),
        module=json.dumps(told),
        trace=["stub", number, "x" * settings["padding"]],
        target=_run["target"],
        args_info=[told],
    )


def learn(index, results):
    return 0.0


# -- candidates


def build(key, module, target, directory):
    told = json.loads(module)
    time.sleep(told["build_s"])
    behave(told["build"])
    if directory is None:
        _held[key] = b"built"
    else:
        (Path(directory) / f"{key}.so").write_bytes(b"built")


def measure(key, args_info, device, directory, options):
    (told,) = json.loads(args_info)
    if directory is None:
        del _held[key]
    else:
        (Path(directory) / f"{key}.so").unlink()
    time.sleep(told["measure_s"])
    run = Path(told["directory"])
    if (run / "device-gone").exists():
        raise RuntimeError("CUDA_ERROR_DEVICE_UNAVAILABLE: the device is gone")
    answer = behave(told["measure"])
    if answer is not None:
        return answer
    # one write a line: what is in it has been measured, whatever happens next
    with (run / LEDGER).open("ab", buffering=0) as ledger:
        ledger.write(f"{key}\n".encode())
    return [latency_of(key)]


def behave(how):
    """Do as told; return what a measurement shall answer, or None if it goes well."""
    if how == "raise":
        raise ValueError("first line\nthe stub was told to fail\x1b[31m <b>&")
    if how == "abort":
        os.abort()
    if how == "exit":
        os._exit(3)
    if how == "out of bounds":
        buffer = ctypes.create_string_buffer(16)
        ctypes.memset(ctypes.addressof(buffer), 0x5A, 1 << 34)
    if how == "hang":
        while True:
            time.sleep(1)
    if how == "spin":
        while True:
            pass
    if how == "eat":
        eaten = []
        while True:
            eaten.append(bytes(bytearray(os.urandom(1 << 10)) * (1 << 14)))
            time.sleep(0.01)
    wrong = {
        "nan": [math.nan],
        "inf": [math.inf],
        "negative": [-1e-3],
        "zero": [0.0],
        "nothing": [],
        "far": [1e10],
    }
    return wrong.get(how)
