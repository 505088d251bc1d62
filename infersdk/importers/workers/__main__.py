"""`python .../workers NAME FOLDER`: runs the worker NAME with the request in FOLDER.

The interpreter may not have infersdk, so this folder becomes a package of its own.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent


def main() -> None:
    name = sys.argv.pop(1)
    if not (HERE / f"{name}.py").is_file():
        print(f"there is no worker {name!r} in {HERE}", file=sys.stderr)
        raise SystemExit(2)
    package = ModuleType("workers")
    package.__path__ = [str(HERE)]
    sys.modules["workers"] = package
    runpy.run_module(f"workers.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
