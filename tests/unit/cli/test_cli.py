"""The command finds its subcommands by entry point and refuses what is none."""

import pytest

from kvatlas_cli import main

COMMANDS = (
    *("indexer", "publisher", "frontend", "mock-engine"),
    *("demo", "verify", "bench", "trace"),
)


def test_usage_names_every_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert f"kvatlas {command}\n" in text


def test_an_unknown_subcommand_is_one_line_and_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["indexr"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("kvatlas: unknown command 'indexr'")
    assert captured.err.count("\n") == 1


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("kvatlas 0.")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_subcommand_tells_its_flags(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status: object = main([command, "--help"])
    except SystemExit as ending:  # argparse ends so
        status = ending.code
    assert status == 0
    assert f"kvatlas {command}" in capsys.readouterr().out
