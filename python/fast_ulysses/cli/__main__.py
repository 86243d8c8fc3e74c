"""``fast-ulysses <command>``. A command is a module with ``NAME``, ``HELP``, ``add_arguments(parser)``, ``run(args)``.

``run`` returns the exit code: 0 all well, 1 a check failed, 2 it could not be tried. The modules import nothing heavy
at their top, so that ``--help`` stays quick and works where an optional dependency is missing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from types import ModuleType

from . import bench, demo

__all__ = ["main"]

COMMANDS: tuple[ModuleType, ...] = (demo, bench)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; ``arguments`` default to those of the process."""
    args = _parser().parse_args(arguments)
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output left; saying so would fail as well
        return 141


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fast-ulysses", description="Sequence-parallel attention exchanges (Ulysses): demonstrations and tools."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and leave")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = commands.add_parser(command.NAME, help=command.HELP, description=command.__doc__)
        sub.formatter_class = argparse.RawDescriptionHelpFormatter
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import fast_ulysses

        print(f"fast-ulysses {fast_ulysses.__version__}")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
