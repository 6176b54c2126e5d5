"""The `kvatlas` command. A subcommand is an entry point of the group `kvatlas.commands`.

Only the subcommand that is called is imported, so that an image that holds one service needs the
dependencies of that service alone.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points, version
from typing import cast

Command = Callable[[Sequence[str]], int]
"""A subcommand: takes the words after its name, returns the exit status."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand that `argv` names."""
    words = list(sys.argv[1:] if argv is None else argv)
    commands = {point.name: point for point in entry_points(group="kvatlas.commands")}
    if not words or words[0] in ("-h", "--help", "help"):
        sys.stdout.write(_usage(commands))
        return 0
    if words[0] == "--version":
        sys.stdout.write(f"kvatlas {version('kvatlas-cli')}\n")
        return 0
    point = commands.get(words[0])
    if point is None:
        known = ", ".join(sorted(commands))
        sys.stderr.write(f"kvatlas: unknown command {words[0]!r}; there are: {known}\n")
        return 2
    command = cast("Command", point.load())
    return command(words[1:])


def _usage(commands: dict[str, EntryPoint]) -> str:
    names = "".join(f"  kvatlas {name}\n" for name in sorted(commands))
    return f"usage: kvatlas COMMAND [FLAGS]\n\n{names}\n--help after a command lists its flags.\n"
