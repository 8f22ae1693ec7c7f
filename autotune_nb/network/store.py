"""Stores a Network in a directory, and loads it again: JSON, NumPy and ONNX files, never pickle."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tvm

from autotune_nb.errors import RunError
from autotune_nb.network.network import Network, TensorSpec
from autotune_nb.run import lines

FORMAT = 1
_INDEX, _MODULE, _PARAMS, _REFERENCE = "network.json", "module.json", "params.npz", "reference.onnx"


def save(network: Network, directory: str | Path) -> None:
    """Write a network to a directory, which is made if it does not exist.

    The files are ``module.json`` (the Relax module), ``params.npz`` (the weights),
    ``reference.onnx`` (if the network has a reference) and ``network.json`` (everything else, and
    the digests of the others). That one is written last: without it the rest is no network.

    Raises
    ------
    RunError
        The directory cannot be written.
    """
    directory = Path(directory)
    files = {_MODULE: tvm.ir.save_json(network.module).encode(), _PARAMS: _pack(network.params)}
    if network.reference is not None:
        files[_REFERENCE] = network.reference
    content = {
        "format": FORMAT,
        "name": network.name,
        "layout": network.layout,
        "inputs": [_spec_to_json(spec) for spec in network.inputs],
        "outputs": [_spec_to_json(spec) for spec in network.outputs],
        "params": [
            {"name": name, "dtype": str(value.dtype), "shape": list(value.shape)}
            for name, value in network.params.items()
        ],
        "parameter_count": network.parameter_count,
        "source": dict(network.source),
        "fingerprint": network.fingerprint(),
        "tvm": tvm.__version__,
        "files": {name: _digest(data) for name, data in files.items()},
    }
    index = json.dumps({**content, "digest": _digest(_canonical(content))}, indent=1)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            lines.replace(directory / name, data)
        lines.replace(directory / _INDEX, index.encode())
    except OSError as error:
        raise RunError(f"{directory}: the network cannot be written there ({error})") from error


def load(directory: str | Path) -> Network:
    """Return the network that `save` wrote to a directory.

    Raises
    ------
    RunError
        A file is missing or damaged, or was written by a later version; the message names it.
    """
    directory = Path(directory)
    content = _read_index(directory / _INDEX)
    files = {name: _read(directory / name, digest) for name, digest in content["files"].items()}
    try:
        network = Network(
            name=content["name"],
            module=tvm.ir.load_json(files[_MODULE].decode()),
            params=_unpack(files[_PARAMS], content["params"]),
            inputs=tuple(_spec_from_json(spec) for spec in content["inputs"]),
            outputs=tuple(_spec_from_json(spec) for spec in content["outputs"]),
            layout=content["layout"],
            source=content["source"],
            parameter_count=content["parameter_count"],
            reference=files.get(_REFERENCE),
        )
    except Exception as error:
        # The digests are right, so another TVM or NumPy wrote what this one cannot read.
        raise RunError(
            f"{directory}: the network was stored with TVM {content['tvm']} and cannot be read "
            f"with {tvm.__version__} ({_first_line(error)}); install the version that stored it"
        ) from error
    if network.fingerprint() != content["fingerprint"]:
        raise RunError(
            f"{directory}: the network is not the one stored with TVM {content['tvm']}: "
            f"TVM {tvm.__version__} reads it differently; install the version that stored it"
        )
    return network


# -- the index --------------------------------------------------------------------------------


def _read_index(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: no network is stored here ({error.strerror})") from error
    try:
        content = json.loads(data)
        version = content.get("format")
        digest = content.pop("digest", None)
    except (ValueError, AttributeError, RecursionError) as error:
        raise _damaged(path) from error
    if isinstance(version, int) and version > FORMAT:
        raise RunError(
            f"{path}: stored by a later version of autotune-nb (format {version}, this one reads "
            f"{FORMAT}); upgrade it"
        )
    if version != FORMAT or digest != _digest(_canonical(content)):
        raise _damaged(path)
    return dict(content)


def _spec_to_json(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype}


def _spec_from_json(value: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(name=value["name"], shape=tuple(value["shape"]), dtype=value["dtype"])


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True).encode()


# -- weights ----------------------------------------------------------------------------------


def _pack(params: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """Return the weights as an .npz file, under numbers: their names are in the index."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for number, value in enumerate(params.values()):
            entry = zipfile.ZipInfo(f"{number}.npy")
            with archive.open(entry, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, _plain(value), allow_pickle=False)
    return buffer.getvalue()


def _unpack(data: bytes, index: list[dict[str, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    params = {}
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        for number, entry in enumerate(index):
            dtype = _dtype(entry["dtype"])
            params[entry["name"]] = archive[str(number)].view(dtype).reshape(entry["shape"])
    return params


def _plain(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array that NumPy can write by itself: bfloat16 and float8 become their bits."""
    value = np.ascontiguousarray(value)
    return value if value.dtype.isbuiltin == 1 else value.view(f"u{value.dtype.itemsize}")


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype


# -- files ------------------------------------------------------------------------------------


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _read(path: Path, digest: str) -> bytes:
    """Return what a file holds, once it is known to be what was written."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: missing or unreadable ({error.strerror})") from error
    # TVM's parser may crash on a damaged module, so this comes before parsing.
    if _digest(data) != digest:
        raise _damaged(path)
    return data


def _damaged(path: Path) -> RunError:
    return RunError(f"{path}: damaged, not what was stored; restore it, or start the run anew")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1][:200]
