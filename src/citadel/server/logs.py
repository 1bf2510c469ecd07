"""Structured logs: one JSON object per line on stderr. Query texts are never logged."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from typing import Any

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "taskName", "color_message"}


class JsonLines(logging.Formatter):
    """Format a record as one line of JSON, with the fields of `extra`.

    >>> record = logging.makeLogRecord({"msg": "request", "levelname": "INFO", "created": 0.0, "status": 200})
    >>> JsonLines().format(record)
    '{"time": "1970-01-01T00:00:00.000Z", "level": "info", "event": "request", "status": 200}'
    """

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{int(record.created % 1 * 1000):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= {
            name: value for name, value in vars(record).items() if name not in _STANDARD and name[0] != "_"
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = "".join(traceback.format_exception(record.exc_info[1]))
        return json.dumps(line, default=str)


def set_up(level: str) -> None:
    """Log to stderr as JSON, including uvicorn's messages."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("citadel", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger("citadel").level))
