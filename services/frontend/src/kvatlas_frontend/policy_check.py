"""`kvatlas frontend --check`: tells what is wrong with a policy, and starts nothing."""

import argparse
import json
import os
import sys
from collections.abc import Sequence

from pydantic import Field

from kvatlas_chassis import HostPort, SettingsError, load_settings
from kvatlas_frontend.routing.check import check
from kvatlas_frontend.routing.installed import all_plugins
from kvatlas_frontend.routing.profile import Problem, ProfileError, load_profile
from kvatlas_frontend.settings import FrontendSettings

FLAG = "--check"

_COLUMNS = ("code", "plugin", "slot", "text")


class _CheckSettings(FrontendSettings):
    """The same settings, none of them required: only `policy` matters."""

    indexer: tuple[HostPort, ...] = ()
    model: str = Field(default="unused", min_length=1)
    block_size: int = Field(default=16, gt=0)


def check_policy(argv: Sequence[str], *, description: str) -> int:
    """Print the problems of the policy that the settings name: a table, or with `--json` a list.

    Returns the exit status: 0, or 2 if the policy or another setting is wrong.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(FLAG, action="store_true")
    parser.add_argument("--json", action="store_true")
    own, others = parser.parse_known_args(argv)
    try:
        settings = load_settings(
            _CheckSettings,
            service="frontend",
            argv=others,
            environ=os.environ,
            description=description,
        )
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    problems = find_problems(settings.policy)
    if own.json:
        rows = [{name: getattr(problem, name) for name in _COLUMNS} for problem in problems]
        sys.stdout.write(json.dumps(rows) + "\n")
    else:
        sys.stdout.write(_table(problems) if problems else f"{settings.policy}: nothing is wrong\n")
    return SettingsError.exit_status if problems else 0


def find_problems(policy: str) -> Sequence[Problem]:
    """Everything that is wrong with a policy; empty: a frontend starts with it."""
    try:
        check(load_profile(policy), all_plugins())
    except ProfileError as error:
        return error.problems
    return ()


def _table(problems: Sequence[Problem]) -> str:
    rows = [
        _COLUMNS,
        *((each.code, each.plugin or "", each.slot or "", each.text) for each in problems),
    ]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_COLUMNS))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)
