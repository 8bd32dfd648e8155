"""tokenfeed COMMAND, or python -m tokenfeed COMMAND: every command of the project under one name.

Each is a module that can be run by itself; it is imported when it is asked for, and not before: the
server blocks its signals before its imports start threads.
"""

from __future__ import annotations

import runpy
import sys

from ._links import require_package
from .commands import COMMANDS, build_parser


def main() -> None:
    """Run the command that was typed, and exit with its exit code."""
    arguments, _ = build_parser().parse_known_args(sys.argv[1:2])
    command = COMMANDS[arguments.command]
    try:
        require_package(command.needs)
    except ImportError as error:
        raise SystemExit(f"error: {arguments.command}: {error}") from None
    name = "tokenfeed" if command.arguments else f"tokenfeed {arguments.command}"
    sys.argv = [name, *command.arguments, *sys.argv[2:]]
    runpy.run_module(f"tokenfeed.{command.module}", run_name="__main__")


if __name__ == "__main__":
    main()
