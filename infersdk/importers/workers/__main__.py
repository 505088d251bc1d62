"""`python .../workers NAME FOLDER`: runs the worker NAME with the request in FOLDER.

The interpreter may not have infersdk, so this folder becomes a package of its own.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent


def main() -> None:
    name, folder = sys.argv[1:]
    Path(folder, "started").touch()
    package = ModuleType("workers")
    package.__path__ = [str(HERE)]
    sys.modules["workers"] = package
    worker = importlib.import_module(f"workers.{name}")
    importlib.import_module("workers.exchange").answer_request(Path(folder), worker.run, worker.MISSING)


if __name__ == "__main__":
    main()
