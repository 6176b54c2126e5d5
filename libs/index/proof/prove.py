"""Check the concurrency of the index: a short form for every test run, and a long one.

The short form runs the models (`src/model/`) under loom. The long form runs them with one preemption more, shows with each
entry of `mutations.toml` that they can fail, runs the stress test under the address and thread sanitizers and for long with a
new seed, runs under Miri where that is installed, and runs all tests without each optimization. A stage that cannot run on
this machine says why; every other one must pass.
"""

# ruff: noqa: INP001, S603, T201 -- a script of one file, which starts the tools it names and reports by printing

import argparse
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
INDEX = Path("libs/index/rust")
MEMBERS = ["libs/types/rust", "libs/hashing/rust", "libs/pages/rust", "libs/index/rust"]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "proof"
TRIPLE = "x86_64-unknown-linux-gnu"
STRESS_LAPS = 1000
SANITIZER_LAPS = 100
# A model that does not end because of a mutation counts as one that did not notice it.
MUTATED_SECONDS_MAX = 600


@dataclass(frozen=True)
class Mutation:
    """One break: file, text, replacement, and the models that must notice."""

    name: str
    why: str
    file: str
    find: str
    replace: str
    models: str


@dataclass(frozen=True)
class Outcome:
    """Result of a command: whether it succeeded, and what it printed on both streams."""

    passed: bool
    text: str


class ProofError(Exception):
    """A stage failed."""


def run(
    command: list[str], where: Path, environment: dict[str, str], seconds: float | None = None
) -> Outcome:
    """Run a command with additions to the environment; a timeout counts as a failure."""
    try:
        done = subprocess.run(
            command,
            cwd=where,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as late:
        text = (late.stdout or b"").decode(errors="replace")
        return Outcome(passed=False, text=f"{text}\nnot done after {late.timeout:.0f} s")
    return Outcome(passed=done.returncode == 0, text=done.stdout.decode(errors="replace"))


def models(root: Path, which: str = "model::", *, deeper: int = 0, build: bool = False) -> Outcome:
    """Build the models under loom, or run those whose names contain `which`."""
    command = ["cargo", "test", "-j2", "-p", "kvatlas-index", "--lib"]
    arguments = ["--no-run"] if build else [which, "--", "--nocapture"]
    environment = {
        # Separate, or cargo could take the build of a mutated copy for that of the repository.
        "CARGO_TARGET_DIR": str(TARGET / ("loom" if root == REPOSITORY else "mutated")),
        "RUSTFLAGS": "--cfg loom",
        "KVATLAS_MODEL_MORE": str(deeper),
    }
    return run(
        [*command, *arguments], root, environment, None if build else MUTATED_SECONDS_MAX * 6
    )


def prove_models(deeper: int) -> None:
    """Run every model and print how many orders it took."""
    outcome = models(REPOSITORY, deeper=deeper)
    found = re.findall(r"model (\S+): (\d+) runs, (.*)", outcome.text)
    if not outcome.passed or not found:
        raise ProofError(outcome.text)
    for name, runs, extent in sorted(found):
        print(f"  {name:<28}{int(runs):>12,} runs  {extent}")


@contextmanager
def copied() -> Generator[Path]:
    """Yield a copy of the crate and its dependencies, in a workspace of its own."""
    with tempfile.TemporaryDirectory(prefix="kvatlas-proof-") as name:
        root = Path(name)
        workspace = (REPOSITORY / "Cargo.toml").read_text()
        listed = ", ".join(f'"{member}"' for member in MEMBERS)
        workspace, count = re.subn(
            r"^members = \[.*?\]",
            f"members = [{listed}]",
            workspace,
            count=1,
            flags=re.DOTALL | re.MULTILINE,
        )
        if count != 1:
            raise ProofError("the workspace's list of members was not found")
        (root / "Cargo.toml").write_text(workspace)
        shutil.copy(REPOSITORY / "Cargo.lock", root)
        for member in MEMBERS:
            shutil.copytree(REPOSITORY / member, root / member)
        yield root


def mutated(text: str, mutation: Mutation) -> str:
    """Replace the text of a mutation, which must occur exactly once."""
    if text.count(mutation.find) != 1:
        raise ProofError(
            f"{mutation.file} has {text.count(mutation.find)} places like this, not one, so"
            f" {mutation.name!r} cannot be tried:\n{mutation.find}"
        )
    return text.replace(mutation.find, mutation.replace)


def unnoticed(root: Path, mutation: Mutation) -> bool:
    """Try one mutation; return whether every model passes all the same."""
    file = root / INDEX / "src" / mutation.file
    original = file.read_text()
    file.write_text(mutated(original, mutation))
    try:
        built = models(root, build=True)
        if not built.passed:
            raise ProofError(f"{mutation.name!r} does not compile:\n{built.text}")
        outcome = models(root, f"model::{mutation.models}")
        if "running 0 tests" in outcome.text:
            raise ProofError(f"{mutation.name!r} names no model: {mutation.models}")
        noticed = not outcome.passed and "panicked at" in outcome.text
        reason = re.search(r"panicked at .*\n(.*)", outcome.text)
        verdict = f"noticed: {reason.group(1)}" if noticed and reason else "NOT NOTICED"
        print(f"  {mutation.name:<52} {verdict}", flush=True)
        return not noticed
    finally:
        file.write_text(original)


def mutations(only: str) -> list[Mutation]:
    """Return the mutations whose names contain `only`."""
    listed = tomllib.loads((Path(__file__).parent / "mutations.toml").read_text())["mutation"]
    return [Mutation(**entry) for entry in listed if only in entry["name"]]


def prove_quotes() -> None:
    """Check that the text of every mutation occurs, before hours of models."""
    source = REPOSITORY / INDEX / "src"
    stale: list[str] = []
    for mutation in mutations(""):
        try:
            mutated((source / mutation.file).read_text(), mutation)
        except (ProofError, FileNotFoundError) as wrong:
            stale.append(str(wrong))
    if stale:
        raise ProofError("\n".join(stale))


def prove_mutations(only: str) -> None:
    """Check that each mutation makes one of its models fail."""
    chosen = mutations(only)
    with copied() as root:
        missed = [mutation.name for mutation in chosen if unnoticed(root, mutation)]
    if missed or not chosen:
        raise ProofError(f"not noticed: {missed}, of {len(chosen)}")


def stress(name: str, flags: str, laps: int, toolchain: list[str]) -> None:
    """Run the stress test, with a new seed, as built with `flags`."""
    seed = secrets.randbits(63) | 1
    environment = {
        "CARGO_TARGET_DIR": str(TARGET / name),
        "RUSTFLAGS": flags,
        "KVATLAS_STRESS_SEED": str(seed),
        "KVATLAS_STRESS_LAPS": str(laps),
        "TSAN_OPTIONS": f"suppressions={Path(__file__).parent / 'thread_sanitizer.supp'}",
    }
    command = ["cargo", *toolchain, "test", "-j2", "-p", "kvatlas-index", "--test", "stress"]
    target = ["--target", TRIPLE] if flags else []
    outcome = run([*command, *target, "--", "--nocapture"], REPOSITORY, environment)
    if not outcome.passed:
        raise ProofError(f"seed {seed}:\n{outcome.text}")
    print(f"  seed {seed}, {laps} laps: passed")


def has_nightly() -> bool:
    """Return whether a compiler with sanitizers is installed for this platform."""
    if shutil.which("rustup") is None:
        return False
    listed = run(["rustup", "toolchain", "list"], REPOSITORY, {})
    return re.search(rf"^nightly-{TRIPLE}", listed.text, re.MULTILINE) is not None


def prove_address_sanity() -> None:
    """Run the stress test under the address sanitizer."""
    if not has_nightly():
        print(f"  left out: it needs the nightly toolchain for {TRIPLE}")
        return
    stress("address", "-Zsanitizer=address", SANITIZER_LAPS, ["+nightly"])


def prove_no_races() -> None:
    """Run the stress test under the thread sanitizer."""
    if not has_nightly():
        print(f"  left out: it needs the nightly toolchain for {TRIPLE}")
        return
    flags = "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer"
    stress("thread", flags, SANITIZER_LAPS, ["+nightly"])


def prove_long_stress() -> None:
    """Run the stress test for long, without a sanitizer."""
    stress("stress", "", STRESS_LAPS, [])


def prove_switches() -> None:
    """Check that the tests pass without each optimization of the ledger, one at a time."""
    manifest = tomllib.loads((REPOSITORY / INDEX / "Cargo.toml").read_text())
    for feature in manifest["features"]:
        command = ["cargo", "test", "-j2", "-p", "kvatlas-index", "--features", feature]
        outcome = run(command, REPOSITORY, {"CARGO_TARGET_DIR": str(TARGET / "switches")})
        if not outcome.passed:
            raise ProofError(f"{feature}:\n{outcome.text}")
        print(f"  {feature}: passed", flush=True)


def prove_miri() -> None:
    """Run the unit tests and a tiny stress test under Miri."""
    if (
        not has_nightly()
        or not run(["cargo", "+nightly", "miri", "--version"], REPOSITORY, {}).passed
    ):
        print(
            "  left out: the nightly toolchain here has no Miri (rustup +nightly component add miri rust-src)"
        )
        return
    environment = {
        "CARGO_TARGET_DIR": str(TARGET / "miri"),
        # Property tests read files of earlier failures.
        "MIRIFLAGS": "-Zmiri-permissive-provenance -Zmiri-disable-isolation",
        "PROPTEST_CASES": "2",
    }
    command = [
        "cargo",
        "+nightly",
        "miri",
        "test",
        "-p",
        "kvatlas-index",
        "--lib",
        "--test",
        "stress",
    ]
    outcome = run(command, REPOSITORY, environment)
    if not outcome.passed:
        raise ProofError(outcome.text)
    print("  unit tests and a tiny stress run: passed")


def main() -> int:
    """Run the stages; return 0 if each passes."""
    parser = argparse.ArgumentParser(description=__doc__)
    stages = {
        "quotes": prove_quotes,
        "models": lambda: prove_models(deeper=0 if chosen.short else 1),
        "mutations": lambda: prove_mutations(chosen.mutations or ""),
        "address sanitizer": prove_address_sanity,
        "thread sanitizer": prove_no_races,
        "long stress run": prove_long_stress,
        "Miri": prove_miri,
        "switches": prove_switches,
    }
    parser.add_argument("--short", action="store_true", help="run only the models, as in CI")
    parser.add_argument(
        "--mutations", metavar="WORD", help="run only the mutations whose names contain WORD"
    )
    parser.add_argument("--only", nargs="+", choices=list(stages), help="run only these stages")
    chosen = parser.parse_args()
    wanted = list(stages)
    if chosen.only:
        wanted = chosen.only
    elif chosen.short:
        wanted = ["models"]
    elif chosen.mutations is not None:
        wanted = ["mutations"]
    for name in wanted:
        print(f"{name}:", flush=True)
        began = time.monotonic()
        try:
            stages[name]()
        except ProofError as wrong:
            print(f"  FAILED\n{wrong}", file=sys.stderr)
            return 1
        print(f"  {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
