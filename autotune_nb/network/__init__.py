"""Networks: from the zoo, from ONNX, from PyTorch. Nothing heavy is imported before a call."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from autotune_nb.network.zoo import NetworkInfo, list_networks, network

if TYPE_CHECKING:
    from autotune_nb.network.network import Network

__all__ = ["NetworkInfo", "list_networks", "network"]


class _CallablePackage(types.ModuleType):
    """This package, which also is the public function `autotune_nb.network`.

    Importing a submodule binds its name in the package that holds it. So once anything has imported
    this package, `autotune_nb.network` is the package: it has to answer the call. And importing
    `autotune_nb.network.network` must not hide the function of that name.
    """

    def __call__(self, name: str, **options: Any) -> Network:
        """Make a network of the zoo: see `network`."""
        return network(name, **options)

    def __setattr__(self, name: str, value: object) -> None:
        if not (name == "network" and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _CallablePackage
