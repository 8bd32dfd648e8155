"""What a shell completes after `tokenfeed`: made from the parsers of all commands, by shtab."""

from __future__ import annotations

import argparse
import re
import signal
import sys
from importlib import import_module

from . import COMMANDS, Command
from . import build_parser as build_command_parser
from .extras import require_installed
from .output import exit_code


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    import shtab

    parser = argparse.ArgumentParser(
        prog="tokenfeed completion",
        description="Print the script by which a shell completes `tokenfeed` commands.",
        epilog='example: eval "$(tokenfeed completion bash)", in ~/.bashrc',
    )
    parser.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)
    return parser


def main() -> int:
    """Print the completion script of a shell.  Returns: 0."""
    require_installed("completion", "completion", "shtab")
    return exit_code(_print_script)


def _print_script() -> None:
    import shtab

    # The reader of the script may stop after its first line.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    shell = build_parser().parse_args().shell
    # Each is the parser of that command, when it is asked what it is called.
    sys.argv = ["tokenfeed"]
    print(shtab.complete(complete_parser(), shell))


def complete_parser() -> argparse.ArgumentParser:
    """Return the parser of `tokenfeed` with those of its commands, as far as the packages that they
    need are installed.
    """
    parser = build_command_parser()
    of_commands = _commands_of(parser)
    for name, command in COMMANDS.items():
        found = _parser_of(command)
        if found is not None:
            found.prog = f"tokenfeed {name}"
            _complete_paths(found)
            of_commands[name] = found
    return parser


def _parser_of(command: Command) -> argparse.ArgumentParser | None:
    try:
        parser = import_module(f"tokenfeed.{command.module}").build_parser()
    except ModuleNotFoundError:
        return None
    return _commands_of(parser)[command.arguments[0]] if command.arguments else parser


def _complete_paths(parser: argparse.ArgumentParser) -> None:
    """Have the shell complete file names after the options that take a path."""
    import shtab

    for action in parser._actions:
        if re.search("PATH|SOURCE|DIR", str(action.metavar)):
            action.complete = shtab.FILE  # type: ignore[attr-defined]


def _commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the commands of a parser, by name; they may be replaced in there."""
    return next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction)).choices


if __name__ == "__main__":
    sys.exit(main())
