"""Settings: parsed once, checked, immutable.

Every setting is a field of a `Settings` class, a flag, an environment variable
`KVATLAS__<SERVICE>__<SETTING>` and a key of the YAML file. Flags win over the environment, and the
environment over the file. An unknown name is an error in all three. Keys take `-` or `_`.
"""

import argparse
import difflib
import re
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from kvatlas_chassis.errors import SettingsError
from kvatlas_chassis.net import HostPort

PREFIX = "KVATLAS__"
_BEGINS_URL = re.compile(r"[a-z][a-z0-9+.-]*:(//|$)", re.IGNORECASE)


class Settings(BaseModel):
    """Base of all settings: immutable, and a key it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ServiceSettings(Settings):
    """Settings of every service."""

    admin: HostPort = Field(
        default=HostPort("127.0.0.1", 0),
        description="address of /healthz, /readyz and /metrics; port 0: any free port",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severe level that is logged"
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="format of a log line on stderr"
    )
    grace_s: float = Field(default=10.0, ge=0, description="seconds to finish after SIGTERM")


S = TypeVar("S", bound=Settings)


def load_settings(
    settings: type[S],
    *,
    service: str,
    argv: Sequence[str],
    environ: Mapping[str, str],
    description: str,
) -> S:
    """Read the settings of `kvatlas SERVICE` from flags, environment and file.

    Args:
        settings: the class to fill; a field's description is its flag's help.
        service: the subcommand's name, as in `mock-engine`.
        argv: the words after the subcommand. `--help` prints and raises SystemExit(0).
        environ: the process environment.
        description: the first lines of `--help`.

    Raises:
        SettingsError: one line that names every problem, its setting and its origin.
    """
    flags = _parse_flags(settings, service=service, argv=argv, description=description)
    file = flags.pop("config", None)
    sources: dict[str, str] = {}
    values: dict[str, Any] = {}
    layers = (
        (f"in {file}", _read_file(file) if file else {}),
        ("in the environment", _read_environment(settings, service, environ)),
        ("on the command line", flags),
    )
    for origin, layer in layers:
        values.update(layer)
        sources.update(dict.fromkeys(layer, origin))
    try:
        return settings.model_validate(values)
    except ValidationError as error:
        lines = [_explain(problem, settings, sources) for problem in error.errors()]
        raise SettingsError(f"kvatlas {service}: " + "; ".join(lines)) from None


def _parse_flags(
    settings: type[Settings], *, service: str, argv: Sequence[str], description: str
) -> dict[str, Any]:
    parser = _Parser(
        prog=f"kvatlas {service}",
        description=description,
        epilog=f"Every flag is also an environment variable ({_variable(service, 'SETTING')}) "
        "and a key of the configuration file. Flags override the environment, which overrides "
        "the file.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--config", metavar="FILE.yaml", help="configuration file")
    for name, field in settings.model_fields.items():
        if not _only_in_file(field):
            _add_flag(parser, name, field)
    return vars(parser.parse_args(argv))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        raise SettingsError(f"{self.prog}: {message} (--help lists the flags)")


def _add_flag(parser: argparse.ArgumentParser, name: str, field: FieldInfo) -> None:
    flag = "--" + name.replace("_", "-")
    text = field.description or ""
    if field.is_required():
        text = f"{text} (required)".strip()
    elif field.default not in (None, "", ()):
        text = f"{text} (default: {_shown(field.default)})".strip()
    text = text.replace("%", "%%")
    metavar = _metavar(field)
    if field.annotation is bool:
        parser.add_argument(flag, dest=name, action=argparse.BooleanOptionalAction, help=text)
    elif _is_list(field):
        parser.add_argument(flag, dest=name, action="extend", nargs="+", help=text, metavar=metavar)
    else:
        parser.add_argument(flag, dest=name, help=text, metavar=metavar)


def _shown(default: object) -> str:
    if isinstance(default, tuple):
        return " ".join(str(item) for item in typing.cast("tuple[object, ...]", default))
    return str(default)


def _metavar(field: FieldInfo) -> str:
    kind = _alternatives(field.annotation)[0]
    if typing.get_origin(kind) in (typing.Annotated, list, tuple):
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) is Literal:
        return "|".join(str(choice) for choice in typing.get_args(kind) if choice)
    plain = {int: "N", float: "X", str: "TEXT", Path: "PATH", HostPort: "H:P"}
    name = kind.__name__.upper() if isinstance(kind, type) else "VALUE"
    return plain.get(typing.cast("Any", kind), name)


def _alternatives(annotation: object) -> tuple[object, ...]:
    """Return the types of `X | None` but for None."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return tuple(a for a in typing.get_args(annotation) if a is not type(None))
    return (annotation,)


def _is_list(field: FieldInfo) -> bool:
    return any(typing.get_origin(a) in (list, tuple) for a in _alternatives(field.annotation))


def _only_in_file(field: FieldInfo) -> bool:
    """Return whether a field is a table or a list of tables: it has no flag and no variable."""
    for annotation in _alternatives(field.annotation):
        inner = (annotation, *typing.get_args(annotation))
        if any(isinstance(a, type) and issubclass(a, (BaseModel, dict)) for a in inner):
            return True
        if typing.get_origin(annotation) in (dict, Mapping):
            return True
    return False


def _read_file(name: str) -> dict[str, Any]:
    try:
        document: object = yaml.safe_load(Path(name).read_text())
    except OSError as error:
        raise SettingsError(f"configuration file {name}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"configuration file {name} is not YAML: {error}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise SettingsError(f"configuration file {name}: a table of settings is expected")
    return _underscored(typing.cast("dict[object, Any]", document))


def _underscored(table: dict[object, Any]) -> dict[str, Any]:
    """Replace `-` by `_` in the keys of a table and of its lists of tables, not in its tables."""
    result: dict[str, Any] = {}
    for key, value in table.items():
        name = str(key).replace("-", "_")
        if isinstance(value, list):
            result[name] = [
                _underscored(typing.cast("dict[object, Any]", item))
                if isinstance(item, dict)
                else item
                for item in typing.cast("list[Any]", value)
            ]
        else:
            result[name] = value
    return result


def _variable(service: str, name: str) -> str:
    return f"{PREFIX}{service}__{name}".replace("-", "_").upper()


def _read_environment(
    settings: type[Settings], service: str, environ: Mapping[str, str]
) -> dict[str, Any]:
    known = {
        _variable(service, name): (name, field)
        for name, field in settings.model_fields.items()
        if not _only_in_file(field)
    }
    values: dict[str, Any] = {}
    for variable, text in environ.items():
        if not variable.startswith(_variable(service, "")):
            continue
        if variable not in known:
            raise SettingsError(
                f"kvatlas {service}: unknown setting {variable} in the environment"
                + _suggestion(variable, known)
            )
        name, field = known[variable]
        is_list = _is_list(field)
        values[name] = _elements(text) if is_list else text
    return values


def _elements(text: str) -> list[str]:
    """Split a list at its commas, except at those between the hosts of one URL."""
    elements: list[str] = []
    for part in filter(None, map(str.strip, text.split(","))):
        if elements and "://" in elements[-1] and not _BEGINS_URL.match(part):
            elements[-1] += f",{part}"
        else:
            elements.append(part)
    return elements


def _explain(
    problem: Mapping[str, Any], settings: type[Settings], sources: Mapping[str, str]
) -> str:
    location: tuple[int | str, ...] = problem["loc"]
    name = ".".join(str(part) for part in location)
    top = str(location[0]) if location else ""
    if problem["type"] == "extra_forbidden":
        known = settings.model_fields if len(location) == 1 else ()
        return f"unknown setting '{name}' {sources.get(top, '')}" + _suggestion(name, known)
    if problem["type"] == "missing":
        if len(location) == 1:
            return f"--{name.replace('_', '-')} is required"
        return f"'{name}' is required {sources.get(top, '')}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    origin = f" ({sources[top]})" if top in sources else ""
    return f"{name}: {message}{origin}" if name else message


def _suggestion(name: str, known: typing.Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""
