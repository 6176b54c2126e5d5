"""Errors that end a process with one line on stderr and an exit status."""


class FatalError(Exception):
    """The process cannot work; the text says why and what to change."""

    exit_status = 1


class SettingsError(FatalError):
    """A setting is missing, unknown or impossible."""

    exit_status = 2
