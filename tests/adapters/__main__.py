"""Runs the adapters against the real frameworks, each in an environment of its own:

    python -m tests.adapters              # all
    python -m tests.adapters lightning    # one

An environment is .venv-adapters/NAME, made by pip from requirements/NAME.txt. Its tests are in
with_NAME.py, which pytest collects only when it is named. `make adapters` runs this.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]


def main(names: list[str]) -> int:
    """Run some adapters, all by default.  Returns: how many failed."""
    known = sorted(path.stem for path in (FOLDER / "requirements").glob("*.txt"))
    if unknown := [name for name in names if name not in known]:
        print(f"{unknown[0]!r} is no adapter with tests; these are: {', '.join(known)}")
        return 2
    failed = [name for name in names or known if not passes(name)]
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return len(failed)


def passes(name: str) -> bool:
    """Make the environment of a framework, and run its tests there."""
    print(f"== {name}", flush=True)
    environment = ROOT / ".venv-adapters" / name
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
    requirements = FOLDER / "requirements" / f"{name}.txt"
    install = [python, "-m", "pip", "install", "--quiet", "-r", requirements]
    tests = [python, "-m", "pytest", "-p", "no:cacheprovider", FOLDER / f"with_{name}.py"]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    return all(
        subprocess.run(command, check=False, cwd=ROOT, env=environ).returncode == 0
        for command in (install, tests)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
