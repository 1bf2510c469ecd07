"""ISO dates and times as microseconds of UTC."""

from __future__ import annotations

import datetime
import re

_ISO = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})"
    r"(?:[T ]([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d)(?:\.(\d{1,9}))?)?"
    r"(?:Z|([+-])([01]\d|2[0-3]):?([0-5]\d))?)?",
    re.ASCII,
)
_EPOCH = datetime.date(1970, 1, 1).toordinal()
_SECOND = 1_000_000


def microseconds(text: str) -> int | None:
    """The microseconds since 1970 in UTC of an ISO date or time; None for any other text.

    A date is its midnight; a time without an offset is UTC; digits beyond microseconds are dropped.

    >>> microseconds("1970-01-01T01:00:00.5+01:00"), microseconds("1970-01-02"), microseconds("soon")
    (500000, 86400000000, None)
    """
    match = _ISO.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, offset_hour, offset_minute = match.groups()
    try:
        days = datetime.date(int(year), int(month), int(day)).toordinal() - _EPOCH
    except ValueError:  # 30 February
        return None
    minutes = days * 1440 + int(hour or 0) * 60 + int(minute or 0)
    offset = int(offset_hour or 0) * 60 + int(offset_minute or 0)
    minutes -= -offset if sign == "-" else offset
    return (minutes * 60 + int(second or 0)) * _SECOND + int((fraction or "0").ljust(6, "0")[:6])


def instant_of(date: datetime.date) -> int:
    """The microseconds since 1970 in UTC of a Python date or datetime; a naive one is UTC.

    >>> instant_of(datetime.date(1970, 1, 2))
    86400000000
    """
    days = date.toordinal() - _EPOCH
    if not isinstance(date, datetime.datetime):
        return days * 86_400 * _SECOND
    seconds = days * 86_400 + date.hour * 3600 + date.minute * 60 + date.second
    shift = (date.utcoffset() or datetime.timedelta()) // datetime.timedelta(microseconds=1)
    return seconds * _SECOND + date.microsecond - shift
