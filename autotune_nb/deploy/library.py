"""Library: a compiled network that can be run, exported and loaded again."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax

from autotune_nb.deploy.quiet import quiet
from autotune_nb.errors import CompileError, InputError
from autotune_nb.network.network import TensorSpec
from autotune_nb.run import lines

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """A function that runs the schedule of a tuning record.

    `calls` is how often the network calls it, `latency_s` what the record measured.
    """

    name: str
    task: int
    record: str
    latency_s: float
    calls: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Which function of a compiled network runs what.

    Attributes
    ----------
    tuned
        Functions with a tuning record.
    fallback
        Functions without one: name and the rule that scheduled it.
    library
        Functions that are calls into a library.
    problems
        Records that fit no function, or could not be applied or built.
    """

    tuned: tuple[Tuned, ...] = ()
    fallback: tuple[tuple[str, str], ...] = ()
    library: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def to_json(self) -> dict[str, list[str]]:
        """Return the names of the functions of each kind."""
        return {
            "tuned": [function.name for function in self.tuned],
            "fallback": [name for name, _ in self.fallback],
            "library": list(self.library),
        }

    def __str__(self) -> str:
        text = f"{len(self.tuned)} tuned, {len(self.fallback)} fallback"
        if self.library:
            text += f", {len(self.library)} library"
        return text + (f"; {len(self.problems)} problems" if self.problems else "")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a compiled network is, beside its code."""

    name: str
    network_fingerprint: str
    target: dict[str, Any]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    versions: dict[str, str]


class Library:
    """A compiled network.

    Parameters
    ----------
    executable
        What TVM compiled, or the module loaded from an exported library.
    signature
        What it is.
    coverage
        Which function runs what.
    device
        The device to run on, such as ``cpu`` or ``cuda:0``.
    path
        The file it was loaded from, if it was.
    """

    def __init__(
        self,
        executable: Any,
        signature: Signature,
        coverage: Coverage,
        *,
        device: str = "cpu",
        path: Path | None = None,
    ) -> None:
        self.executable = executable
        self.signature = signature
        self.coverage = coverage
        self.device_name = device
        self.path = path
        self._vm: Any = None

    def __repr__(self) -> str:
        return f"<Library {self.signature.name}: {self.coverage}>"

    @property
    def estimated_total_latency_s(self) -> float | None:
        """Σ latency · calls over the tuned functions; None if there are none.

        Functions without a record are left out: the estimate is partial while there are any.
        """
        if not self.coverage.tuned:
            return None
        return sum(function.latency_s * function.calls for function in self.coverage.tuned)

    @property
    def device(self) -> Any:
        """The device as TVM's object; asking for one on a GPU initialises that GPU."""
        return tvm.runtime.device(self.device_name)

    @property
    def vm(self) -> Any:
        """The ``relax.VirtualMachine`` that runs it, made when first asked for."""
        if self._vm is None:
            cores = self.signature.target.get("num-cores")
            if self.signature.target.get("kind") == "llvm" and cores:
                _use_cores(int(cores))
            with quiet():
                self._vm = relax.VirtualMachine(self.executable, self.device)
        return self._vm

    def run(self, inputs: Mapping[str, Array] | Sequence[Array]) -> list[Array]:
        """Run the network once.

        Parameters
        ----------
        inputs
            An array for each input, by name or in order; of exactly its shape and dtype.

        Returns
        -------
        list of numpy.ndarray
            One array for each output.

        Raises
        ------
        InputError
            If an input is missing, unknown, or of another shape or dtype.
        """
        return outputs_to_numpy(self.vm["main"](*self.arguments(inputs)))

    def arguments(self, inputs: Mapping[str, Array] | Sequence[Array]) -> list[Any]:
        """Return the inputs as tensors on the device, checked as `run` does."""
        specs = self.signature.inputs
        if isinstance(inputs, Mapping):
            names = {spec.name for spec in specs}
            if set(inputs) != names:
                raise InputError(
                    f"{self.signature.name}: takes the inputs {', '.join(sorted(names))}, "
                    f"not {', '.join(sorted(map(str, inputs))) or 'none'}"
                )
            arrays = [inputs[spec.name] for spec in specs]
        else:
            arrays = list(inputs)
            if len(arrays) != len(specs):
                raise InputError(
                    f"{self.signature.name}: takes {len(specs)} inputs, not {len(arrays)}"
                )
        for spec, array in zip(specs, arrays, strict=True):
            if tuple(np.shape(array)) != spec.shape or str(np.asarray(array).dtype) != spec.dtype:
                found = f"{np.asarray(array).dtype}[{', '.join(map(str, np.shape(array)))}]"
                raise InputError(
                    f"{self.signature.name}: input {spec} was given {found}; convert it first"
                )
        return [
            tvm.runtime.tensor(np.ascontiguousarray(array), device=self.device) for array in arrays
        ]

    def profile(self, inputs: Mapping[str, Array] | Sequence[Array] | None = None) -> pd.DataFrame:
        """Time each function where it runs, inside the network, and return a row for each.

        Random inputs are used if there are none. See `autotune_nb.deploy.profile` for the columns.
        """
        from autotune_nb.deploy.profile import profile

        return profile(self, inputs).table()

    def export(self, path: str | Path) -> Path:
        """Write the library as a shared object, and its metadata as JSON beside it.

        TVM's runtime alone loads it::

            module = tvm.runtime.load_module("network.so")
            machine = tvm.relax.VirtualMachine(module, tvm.cpu())
            output = machine["main"](tvm.runtime.tensor(array))

        TVM uses half of the cores of an x86 machine unless ``TVM_NUM_THREADS`` says otherwise; the
        metadata gives the number that was tuned for.

        Parameters
        ----------
        path
            Of the shared object, ``.so`` by custom; ``path.json`` is written too.

        Returns
        -------
        pathlib.Path
            The path of the shared object.

        Raises
        ------
        CompileError
            If it cannot be linked or written.
        """
        path = Path(path)
        if self.path is not None:
            raise CompileError(
                f"{path}: a library that was loaded cannot be exported again; copy {self.path}"
            )
        if not path.parent.is_dir():
            raise CompileError(f"{path}: its folder does not exist; make it first")
        part = path.with_name(f".{path.name}.part{path.suffix}")
        try:
            with quiet():
                self.executable.export_library(str(part))
            lines.replace(metadata_path(path), json.dumps(self._metadata(), indent=1).encode())
            part.replace(path)
        except (OSError, RuntimeError) as error:
            reason = (str(error).strip().splitlines() or [""])[-1]
            raise CompileError(
                f"{path}: cannot be written or linked ({reason}); 'autotune-nb doctor' tells "
                "whether a C++ linker is missing"
            ) from error
        finally:
            part.unlink(missing_ok=True)
        return path

    def _metadata(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            **dataclasses.asdict(self.signature),
            "device": self.device_name,
            "environment": {"TVM_NUM_THREADS": str(self.signature.target.get("num-cores", ""))},
            "coverage": dataclasses.asdict(self.coverage),
            "estimated_total_latency_s": self.estimated_total_latency_s,
        }

    @classmethod
    def load(cls, path: str | Path) -> Library:
        """Load an exported library with its metadata.

        Raises
        ------
        InputError
            If one of the two files is missing or damaged.
        """
        path = Path(path)
        try:
            value = json.loads(metadata_path(path).read_bytes())
            signature = Signature(
                name=value["name"],
                network_fingerprint=value["network_fingerprint"],
                target=value["target"],
                inputs=tuple(_spec(spec) for spec in value["inputs"]),
                outputs=tuple(_spec(spec) for spec in value["outputs"]),
                versions=value["versions"],
            )
            coverage = Coverage(
                tuned=tuple(Tuned(**function) for function in value["coverage"]["tuned"]),
                fallback=tuple((name, rule) for name, rule in value["coverage"]["fallback"]),
                library=tuple(value["coverage"]["library"]),
                problems=tuple(value["coverage"]["problems"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{metadata_path(path)}: cannot be read ({error}); export the library again"
            ) from error
        try:
            with quiet():
                module = tvm.runtime.load_module(str(path))
        except Exception as error:  # the loader's or TVM's
            reason = (str(error).strip().splitlines() or [""])[-1]
            raise InputError(
                f"{path}: cannot be loaded ({reason}); export the library again"
            ) from error
        return cls(module, signature, coverage, device=value["device"], path=path)


def _use_cores(count: int) -> None:
    """Let TVM compute on so many cores, unless the user has said otherwise.

    By itself it uses every second core of x86, whatever its pool is told, so the variable has to be
    there when the pool is made and stay: half of two cores made ResNet-18 half as slow again.
    """
    os.environ.setdefault("TVM_NUM_THREADS", str(count))
    tvm.get_global_func("runtime.config_threadpool")(1, count)


def metadata_path(path: Path) -> Path:
    """Return where the metadata of an exported library is."""
    return path.with_name(path.name + ".json")


def outputs_to_numpy(outputs: Any) -> list[Array]:
    """Return what a virtual machine returned as arrays."""
    if hasattr(outputs, "numpy"):
        return [outputs.numpy()]
    return [array for output in outputs for array in outputs_to_numpy(output)]


def _spec(value: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(name=value["name"], shape=tuple(value["shape"]), dtype=value["dtype"])
