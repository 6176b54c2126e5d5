"""`kvatlas verify`: compares every worker on every replica, and with its publisher."""

import sys
from collections.abc import Sequence

from kvatlas_chassis import HostPort, Settings, SettingsError, load_settings

COULD_NOT_TELL = 2


class VerifySettings(Settings):
    """Settings of `kvatlas verify`."""

    indexer: tuple[HostPort, ...] = ()
    publisher: tuple[HostPort, ...] = ()


def command(argv: Sequence[str]) -> int:
    """Say that this build cannot compare; exit status 2, which stands for "could not tell"."""
    try:
        load_settings(
            VerifySettings,
            service="verify",
            argv=argv,
            environ={},
            description="Compare every worker on every indexer replica, and with its publisher.",
        )
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    sys.stderr.write("kvatlas verify: not in this build: its indexers cannot dump their state\n")
    return COULD_NOT_TELL
