"""`kvatlas trace`: `analyze` prints figures of a request trace, `synthesize` writes one like it."""

import sys
from collections.abc import Callable, Mapping, Sequence

from kvatlas_chassis import FatalError, SettingsError
from kvatlas_loadtest.trace import TraceError
from kvatlas_loadtest.traces import analyze, synthesize

_COMMANDS: Mapping[str, tuple[Callable[[Sequence[str]], None], str]] = {
    "analyze": (analyze.run, "print lengths, hit ratios by capacity, reuse and tree of a trace"),
    "synthesize": (synthesize.run, "write a new trace that is like another one"),
}
_INTERRUPTED = 130


def command(argv: Sequence[str]) -> int:
    """Run the named part; return 0, 2 for wrong flags or a wrong trace, 1 for other failures."""
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(_usage())
        return 0
    try:
        if argv[0] not in _COMMANDS:
            raise SettingsError(
                f"kvatlas trace: unknown {argv[0]!r}; there are {', '.join(_COMMANDS)}"
            )
        _COMMANDS[argv[0]][0](argv[1:])
    except FatalError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    except TraceError as error:
        sys.stderr.write(f"kvatlas trace {argv[0]}: {error}\n")
        return SettingsError.exit_status
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


def _usage() -> str:
    lines = "".join(f"  kvatlas trace {name:<12}{text}\n" for name, (_, text) in _COMMANDS.items())
    return f"usage: kvatlas trace COMMAND [FLAGS]\n\n{lines}\n--help after a command lists its flags.\n"
