"""Which data-parallel rank an engine's messages name, and what to do when it is another one."""

from enum import Enum, auto

from kvatlas_chassis import SettingsError


class Named(Enum):
    """What a message's rank says of it."""

    OURS = auto()
    """It is the one that is followed, or the message says none."""
    LEARNED = auto()
    """It was not known until now: it is the one to follow from here on."""
    STRAY = auto()
    """The message is not to be used."""


class Rank:
    """The rank of one endpoint, which a setting or the first message names.

    One message that names another is a stray: broken, or sent to the wrong place. The engine may
    say it again after each start, so it ends nobody. Two with none of ours between them are
    another engine's.

    Args:
        endpoint: who speaks; for errors.
        configured: by a setting; None: the engine says it.
    """

    def __init__(self, endpoint: object, configured: int | None) -> None:
        self.followed = configured or 0
        self._endpoint = endpoint
        self._is_known = configured is not None
        self._stray: int | None = None

    def heard(self) -> None:
        """A message named the rank that is followed."""
        self._is_known = True
        self._stray = None

    def judge(self, said: int | None) -> Named:
        """Judge a message by the rank that it names, if it does.

        Raises:
            SettingsError: the engine's rank is not the one that is known.
        """
        if said is None:
            return Named.OURS
        if said == self.followed:
            self.heard()
            return Named.OURS
        if not self._is_known:
            self.followed = said
            self.heard()
            return Named.LEARNED
        if said == self._stray:
            raise SettingsError(
                f"kvatlas publisher: {self._endpoint} speaks for dp rank {said}, not "
                f"{self.followed}; use --dp-rank {said}"
            )
        self._stray = said
        return Named.STRAY
