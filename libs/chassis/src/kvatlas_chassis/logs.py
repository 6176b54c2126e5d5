"""Logging to stderr, one line per entry. Stdout carries only the ready line."""

import json
import logging
import sys
import time
from typing import Literal


class _JsonFormatter(logging.Formatter):
    def __init__(self, process: str | None) -> None:
        super().__init__()
        self._process = {} if process is None else {"process": process}

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            **self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def setup_logging(
    level: str, log_format: Literal["text", "json"], *, process: str | None = None
) -> None:
    """Send this process's logs to stderr.

    `process`: a field of every line, for services of several processes that share stderr.
    """
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(_JsonFormatter(process))
    else:
        field = "" if process is None else f"process={process} "
        text = f"%(asctime)s %(levelname)s {field}%(name)s: %(message)s"
        handler.setFormatter(logging.Formatter(text))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
