"""Runs the adapters against the real frameworks, each in an environment of its own:

    python -m tests.adapters              # all
    python -m tests.adapters lightning    # one
    python -m tests.adapters --over lightning transformers

An environment is .venv-adapters/NAME, made by pip from requirements/NAME.txt. Its tests are in
with_NAME.py, which pytest collects only when it is named. `make adapters` runs this.

With --over, all have one environment, .venv-adapters/over, which has the packages of the Python
that runs this too; and the long forms of tests are left out. `.ci/run` runs the light ones so.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
KNOWN = sorted(path.stem for path in (FOLDER / "requirements").glob("*.txt"))


def main() -> int:
    """Run some adapters, all by default.  Returns: how many failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(KNOWN))
    parser.add_argument("--over", action="store_true")
    arguments = parser.parse_args()
    names = arguments.names or KNOWN
    if unknown := [name for name in names if name not in KNOWN]:
        parser.error(f"{unknown[0]!r} is no adapter with tests; these are: {', '.join(KNOWN)}")
    runs = [names] if arguments.over else [[name] for name in names]
    failed = [name for run in runs if not passes(run, is_over=arguments.over) for name in run]
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return len(failed)


def passes(names: list[str], *, is_over: bool) -> bool:
    """Make an environment of frameworks, and run their tests there."""
    print(f"== {' '.join(names)}", flush=True)
    environment = ROOT / ".venv-adapters" / ("over" if is_over else names[0])
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=not is_over)
    if is_over:
        (packages,) = environment.glob("lib/python*/site-packages")
        below = sysconfig.get_path("purelib")
        (packages / "below.pth").write_text(f"import site; site.addsitedir({below!r})\n")
    install: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--no-compile"]
    tests: list[str | Path] = [python, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0"]
    tests += [] if is_over else ["-m", "proof or not proof"]
    for name in names:
        install += ["-r", FOLDER / "requirements" / f"{name}.txt"]
        tests.append(FOLDER / f"with_{name}.py")
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]  # of Megatron-LM, say
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    return all(
        subprocess.run(command, check=False, cwd=ROOT, env=environ).returncode == 0
        for command in (install, tests)
    )


if __name__ == "__main__":
    sys.exit(main())
