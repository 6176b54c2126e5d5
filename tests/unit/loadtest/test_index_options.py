"""The flags of `kvatlas bench index`: what each leaves to be measured, and which exclude each other."""

import argparse

import pytest

from kvatlas_chassis import SettingsError
from kvatlas_loadtest.bench.index.options import Options, add_flags, read_options


def read(*words: str) -> Options:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return read_options(parser.parse_args(words))


def test_streams_and_single_calls_can_each_be_left_out() -> None:
    both, streams, calls = read(), read("--no-micro"), read("--only-micro", "--large")
    assert (both.only, both.micro) == (Options().only, True)
    assert (streams.only, streams.micro) == (Options().only, False)
    assert (calls.only, calls.streams, calls.micro, calls.large) == ((), (), True, True)


@pytest.mark.parametrize(
    "words", [("--only", "hub"), ("--designs", "flat index"), ("--stream", __file__)]
)
def test_what_is_about_streams_is_refused_beside_single_calls_alone(words: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError, match="--only-micro"):
        read("--only-micro", *words)
