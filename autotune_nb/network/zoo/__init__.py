"""The zoo: well-known networks by name, with seeded weights."""

from __future__ import annotations

import dataclasses
import importlib
import operator
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from autotune_nb.errors import NetworkError, near_matches
from autotune_nb.network.zoo.catalogue import Entry, Options
from autotune_nb.network.zoo.plan import Plan

if TYPE_CHECKING:
    from autotune_nb.network.network import Network

_FAMILIES = (
    "resnet",
    "resnet3d",
    "mobilenet",
    "squeezenet",
    "inception",
    "vgg",
    "densenet",
    "mlp",
    "dcgan",
    "transformer",
)
_DTYPES = ("float32", "float16")
_HINT = "`autotune-nb networks` lists them"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NetworkInfo:
    """A network of the zoo at batch size 1, as `autotune-nb networks` lists it.

    Attributes
    ----------
    name
        What `autotune_nb.network` takes.
    parameters
        Trainable scalars.
    flops
        Twice the multiply-accumulates of convolutions, dense layers and attention products.
    layouts
        Layouts it exists in, the default first; empty where it has no images.
    inputs
        Shape of each input by name, in the default layout.
    """

    name: str
    parameters: int
    flops: int
    layouts: tuple[str, ...]
    inputs: dict[str, tuple[int, ...]]


@cache
def _entries() -> dict[str, Entry]:
    modules = (importlib.import_module(f"{__name__}.{family}") for family in _FAMILIES)
    return {entry.name: entry for module in modules for entry in module.ENTRIES}


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _find(name: str) -> Entry:
    entries = _entries()
    if not isinstance(name, str):
        raise NetworkError(f"a network's name is a string, not {name!r}; {_HINT}")
    keys = {_key(alias): e for e in entries.values() for alias in (e.name, *e.aliases)}
    if found := keys.get(_key(name)):
        return found
    close = near_matches(name.lower(), entries)
    raise NetworkError(f"no network is called {name!r}{close}; {_HINT}")


def _whole(value: Any, what: str, least: int) -> int:
    """Return `value` as an int, or raise NetworkError."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise NetworkError(f"{what} must be a whole number from {least} up, not {value!r}")
    return number


def _layout(entry: Entry, layout: str | None) -> str:
    if layout is not None and layout not in ("NHWC", "NCHW"):
        raise NetworkError(f"layout must be NHWC or NCHW, not {layout!r}")
    if not entry.layouts:
        return ""
    if layout is not None and layout not in entry.layouts:
        raise NetworkError(
            f"{entry.name} exists in {' and '.join(entry.layouts)} only, not in {layout}: "
            f"pass layout={entry.layouts[0]!r}"
        )
    return layout or entry.layouts[0]


def _dtype(dtype: Any) -> str:
    if dtype not in _DTYPES:
        raise NetworkError(f"dtype must be {' or '.join(_DTYPES)}, not {dtype!r}")
    return str(dtype)


def plan(name: str, *, batch_size: int = 1, image_size: int | None = None) -> Plan:
    """Return the layers of a network of the zoo, without building anything.

    Raises
    ------
    NetworkError
        As `network` does.
    """
    return _plan(_find(name), batch_size, image_size)


def _plan(entry: Entry, batch_size: int, image_size: int | None) -> Plan:
    batch_size = _whole(batch_size, "batch_size", 1)
    if image_size is not None and entry.image_size is None:
        raise NetworkError(f"{entry.name} has no image size to choose; leave image_size out")
    size = entry.image_size or 0 if image_size is None else _whole(image_size, "image_size", 1)
    try:
        return entry.build(Options(batch_size=batch_size, image_size=size))
    except ValueError as error:
        raise NetworkError(
            f"{entry.name} cannot take images of {size}x{size} ({error}): "
            f"it was made for {entry.image_size}"
        ) from None


def network(
    name: str,
    *,
    batch_size: int = 1,
    layout: str | None = None,
    dtype: str = "float32",
    seed: int = 0,
    image_size: int | None = None,
) -> Network:
    """Make a network of the zoo, with weights drawn from a seed.

    The same seed gives the same function in either layout. Batch norms are folded into the
    convolutions. The network ends in logits, without softmax.

    Parameters
    ----------
    name
        For example ``resnet-18``; case and punctuation do not matter.
    batch_size
        Extent of the first axis of inputs and outputs.
    layout
        ``NHWC`` or ``NCHW`` (of 3-D networks: NDHWC or NCDHW); by default NHWC where it exists.
    dtype
        ``float32`` or ``float16``.
    seed
        Of the weights.
    image_size
        Side of the square input image, instead of the one the network was made for.

    Raises
    ------
    NetworkError
        An unknown name (the message has near matches), or an option the network cannot have.
    """
    entry = _find(name)
    layers = _plan(entry, batch_size, image_size)
    chosen, dtype = _layout(entry, layout), _dtype(dtype)
    seed = _whole(seed, "seed", 0)

    from autotune_nb.network.zoo.build import build

    source = {
        "kind": "zoo",
        "name": entry.name,
        "batch_size": int(batch_size),
        "layout": chosen,
        "dtype": dtype,
        "seed": seed,
        "image_size": image_size or entry.image_size,
    }
    return build(entry.name, layers, layout=chosen, dtype=dtype, seed=seed, source=source)


def list_networks() -> list[NetworkInfo]:
    """Return what the zoo holds, without building anything."""
    rows = []
    for entry in _entries().values():
        layers = _plan(entry, 1, None)
        last = entry.layouts[:1] == ("NHWC",)
        shapes = {
            name: (v.shape[0], *v.shape[2:], v.shape[1]) if last and role == "image" else v.shape
            for name, v, role in layers.inputs
        }
        rows.append(
            NetworkInfo(
                name=entry.name,
                parameters=layers.parameter_count,
                flops=layers.flops,
                layouts=entry.layouts,
                inputs=shapes,
            )
        )
    return rows
