"""Auto-tune neural networks with Apache TVM; the public names, each loaded when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune_nb import doctor, errors
    from autotune_nb.network import from_onnx, from_torch, list_networks, network
    from autotune_nb.run import measure
    from autotune_nb.run.imports import import_run
    from autotune_nb.session import TuningSession
    from autotune_nb.view import plots as plot

__version__ = "0.1.0"

__all__ = [
    "TuningSession",
    "__version__",
    "doctor",
    "errors",
    "from_onnx",
    "from_torch",
    "import_run",
    "list_networks",
    "measure",
    "network",
    "plot",
]

# Public name -> the module it lives in and its name there ("" for the module itself). Importing
# the package costs nothing: TVM alone takes seconds, pandas and plotly most of one.
_LAZY = {
    "TuningSession": ("autotune_nb.session", "TuningSession"),
    "doctor": ("autotune_nb.doctor", ""),
    "errors": ("autotune_nb.errors", ""),
    "from_onnx": ("autotune_nb.network", "from_onnx"),
    "from_torch": ("autotune_nb.network", "from_torch"),
    "import_run": ("autotune_nb.run.imports", "import_run"),
    "list_networks": ("autotune_nb.network", "list_networks"),
    "measure": ("autotune_nb.run.measure", ""),
    # The package itself answers the call: whatever imports it binds its name here.
    "network": ("autotune_nb.network", ""),
    "plot": ("autotune_nb.view.plots", ""),
}


def __getattr__(name: str) -> object:
    """Load a public name on first use (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module_name, attribute = _LAZY[name]
    module = importlib.import_module(module_name)
    value: object = getattr(module, attribute) if attribute else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, whether loaded yet or not."""
    return sorted({*globals(), *__all__})
