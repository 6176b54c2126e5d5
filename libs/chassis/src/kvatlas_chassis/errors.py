"""Errors that end a process: one line for the person who can act on it, and an exit status."""


class FatalError(Exception):
    """The process cannot do its work; `str(error)` says why and what to change."""

    exit_status = 1


class SettingsError(FatalError):
    """A setting is missing, unknown or impossible."""

    exit_status = 2
