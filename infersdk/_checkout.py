"""The import of infersdk in the root of a source checkout, whose package has no compiled core.

Python puts the working directory before the installed packages, so it finds the sources first.
"""

from __future__ import annotations

import sys
from importlib.metadata import distributions
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

__all__ = ["use_installed"]


def use_installed() -> None:
    """Replaces the package `infersdk` in `sys.modules` by the installed one.

    Raises:
        ImportError: infersdk is not installed.
    """
    checkout = Path(__file__).resolve().parent
    # A build leaves metadata in the checkout, which is not an installed package.
    folders = [Path(str(one.locate_file("infersdk"))).resolve() for one in distributions(name="infersdk")]
    installed = next((one for one in folders if one != checkout and (one / "__init__.py").is_file()), None)
    if installed is None:
        raise ImportError(
            f"{str(checkout)!r} is source code without the compiled core of infersdk; build and install it: "
            "pip install -e ."
        ) from None
    for name in [name for name in sys.modules if name.startswith("infersdk.")]:
        del sys.modules[name]
    spec = spec_from_file_location("infersdk", installed / "__init__.py", submodule_search_locations=[str(installed)])
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["infersdk"] = module_from_spec(spec)
    spec.loader.exec_module(module)
