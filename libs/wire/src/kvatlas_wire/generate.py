"""Generates the committed protobuf code from `protos/`, or checks that it is up to date.

`make protos` runs it, `make lint` runs it with `--check`. It needs the repository and the
development dependencies; an installed wheel has no use for it.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PACKAGE_DIR = Path(__file__).parent
REPOSITORY = PACKAGE_DIR.parents[3]
PROTOS = REPOSITORY / "protos"
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")


def generate(destination: Path) -> None:
    """Write the generated modules of every proto file below `destination/v1`."""
    files = sorted(PROTOS.glob("kvatlas/v1/*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        arguments = [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--proto_path={PROTOS}",
            f"--plugin=protoc-gen-mypy={_plugin('protoc-gen-mypy')}",
            f"--plugin=protoc-gen-mypy_grpc={_plugin('protoc-gen-mypy_grpc')}",
            f"--python_out={scratch}",
            f"--grpc_python_out={scratch}",
            f"--mypy_out={scratch}",
            f"--mypy_grpc_out={scratch}",
            *(str(file) for file in files),
        ]
        subprocess.run(arguments, check=True)  # noqa: S603 - our own words
        destination = destination / "v1"
        destination.mkdir(parents=True, exist_ok=True)
        for file in sorted(Path(scratch).rglob("*")):
            if file.name.endswith(SUFFIXES):
                (destination / file.name).write_text(_relocate(file.read_text()))
        (destination / "__init__.py").write_text(
            '"""Generated from protos/kvatlas/v1 by `make protos`; do not edit."""\n'
        )


def differences(fresh: Path) -> list[str]:
    """Names of generated files that differ from the committed ones."""
    committed = PACKAGE_DIR / "v1"
    names = {f.name for f in (fresh / "v1").iterdir()}
    names |= {f.name for f in committed.iterdir() if f.suffix in (".py", ".pyi")}
    return sorted(name for name in names if _text(fresh / "v1" / name) != _text(committed / name))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the generator; with `--check`, exit 1 if the committed code is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if stale")
    arguments = parser.parse_args(argv)
    if not arguments.check:
        shutil.rmtree(PACKAGE_DIR / "v1", ignore_errors=True)
        generate(PACKAGE_DIR)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        stale = differences(Path(scratch))
    if stale:
        sys.stderr.write(f"stale generated code (run `make protos`): {', '.join(stale)}\n")
        return 1
    return 0


def _plugin(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _relocate(source: str) -> str:
    """Our modules live in `kvatlas_wire.v1`; protoc names them after the proto's own path."""
    return source.replace("from kvatlas.v1 import", "from kvatlas_wire.v1 import")


def _text(file: Path) -> str | None:
    return file.read_text() if file.exists() else None


if __name__ == "__main__":
    raise SystemExit(main())
