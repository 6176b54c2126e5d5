"""`kvatlas verify`: compares every worker on every replica, and with its publisher."""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing

from pydantic import Field

from kvatlas_chassis import HostPort, Settings, SettingsError, load_settings
from kvatlas_verify.comparison import Findings, Retries, check_terms, compare
from kvatlas_verify.publishers import PublisherSides
from kvatlas_verify.rpc import CannotTell, Publisher, Replica

WHOLE, DIFFERENT, COULD_NOT_TELL = 0, 1, 2


class VerifySettings(Settings):
    """Settings of `kvatlas verify`."""

    indexer: tuple[HostPort, ...] = Field(
        min_length=1, description="replica to compare; two or more, or one and a publisher"
    )
    publisher: tuple[HostPort, ...] = Field(
        default=(),
        description="publisher to compare with; also compares its workers that no replica knows",
    )
    full: bool = Field(
        default=False,
        description="compare every hash of every worker; otherwise counts and digests (XOR of the "
        "hashes), and hashes only of workers that differ",
    )
    tries: int = Field(
        default=20,
        gt=0,
        description="number of attempts to find a worker at the same event everywhere",
    )
    pause_ms: int = Field(default=200, ge=0, description="pause between two attempts, milliseconds")
    timeout_s: float = Field(default=60.0, gt=0, description="time limit of one answer, seconds")


def command(argv: Sequence[str]) -> int:
    """Compare; exit status 0 whole, 1 different, 2 could not tell."""
    try:
        settings = load_settings(
            VerifySettings,
            service="verify",
            argv=argv,
            environ=os.environ,
            description="Compare every worker on every indexer replica, and with its publisher. "
            "Exit status: 0 whole, 1 with the differences listed, 2 could not tell or wrong flags.",
        )
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    if len(settings.indexer) + len(settings.publisher) == 1:
        return _cannot_tell(
            "one side has nothing to be compared with; add an --indexer or a --publisher"
        )
    try:
        return _report(_compare(settings), settings)
    except CannotTell as error:
        return _cannot_tell(str(error))


def _compare(settings: VerifySettings) -> Findings:
    retries = Retries(settings.tries, lambda: time.sleep(settings.pause_ms / 1000))
    timeout_s = settings.timeout_s
    with ExitStack() as open_sides:
        replicas = [
            open_sides.enter_context(closing(Replica(address, timeout_s=timeout_s)))
            for address in settings.indexer
        ]

        def connect(address: HostPort) -> Publisher:
            return open_sides.enter_context(closing(Publisher(address, timeout_s=timeout_s)))

        publishers = PublisherSides([connect(address) for address in settings.publisher], connect)
        check_terms(replicas)
        return compare(replicas, publishers, retries, full=settings.full)


def _report(findings: Findings, settings: VerifySettings) -> int:
    for lines in findings.differing.values():
        sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.writelines(f"could not tell: {line}\n" for line in findings.undecided)
    if findings.differing:
        sys.stdout.write(f"differ: {len(findings.differing)} of {findings.workers} workers\n")
        return DIFFERENT
    if findings.undecided:
        return COULD_NOT_TELL
    by = "every hash" if settings.full else "count and digest"
    sys.stdout.write(
        f"whole: {len(settings.indexer)} replicas agree on {findings.workers} workers, "
        f"{findings.blocks} blocks, by {by}; "
        f"{findings.publishers} of the workers agree with their publishers\n"
    )
    return WHOLE


def _cannot_tell(reason: str) -> int:
    sys.stdout.write(f"could not tell: {reason}\n")
    return COULD_NOT_TELL
