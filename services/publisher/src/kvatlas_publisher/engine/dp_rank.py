"""Checks which data-parallel rank an engine's messages name."""

from enum import Enum, auto

from kvatlas_chassis import SettingsError


class RankMatch(Enum):
    """How the rank that a message names compares with the one that is followed."""

    SAME = auto()
    """It is the same, or the message names none."""
    LEARNED = auto()
    """No rank was known; from here on this one is followed."""
    STRAY = auto()
    """It is another one: do not use the message."""


class DpRankCheck:
    """The rank of one endpoint, named by a setting or by the first message.

    One message that names another rank is a stray: damaged, or sent to the wrong place. An engine
    may repeat such a message after each start, so a single one is not fatal. Two strays of the same
    rank, with no good message between them, mean that the endpoint is another engine's.

    Args:
        endpoint: the engine's address, for errors.
        configured: the rank by `--dp-rank`; None: the engine names it.
    """

    def __init__(self, endpoint: object, configured: int | None) -> None:
        self.followed = configured or 0
        self._endpoint = endpoint
        self._is_known = configured is not None
        self._stray: int | None = None

    def confirm(self) -> None:
        """Note that a message named the followed rank."""
        self._is_known = True
        self._stray = None

    def check(self, named: int | None) -> RankMatch:
        """Compare the rank that a message names, if it does, with the followed one.

        Raises:
            SettingsError: the endpoint is another rank's.
        """
        if named is None:
            return RankMatch.SAME
        if named == self.followed:
            self.confirm()
            return RankMatch.SAME
        if not self._is_known:
            self.followed = named
            self.confirm()
            return RankMatch.LEARNED
        if named == self._stray:
            raise SettingsError(
                f"kvatlas publisher: {self._endpoint} speaks for dp rank {named}, not "
                f"{self.followed}; use --dp-rank {named}"
            )
        self._stray = named
        return RankMatch.STRAY
