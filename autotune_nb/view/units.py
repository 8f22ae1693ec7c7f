"""How numbers are written for people: latencies, speeds, durations, shares."""

from __future__ import annotations

import math


def significant(value: float | None, digits: int = 4, missing: str = "-") -> str:
    """Return `value` with at least `digits` significant digits and no exponent.

    Digits before the decimal point are never rounded away. None and NaN give `missing`.
    """
    if value is None or math.isnan(value):
        return missing
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{min(max(decimals, 0), 9)}f}"


def milliseconds(seconds: float | None, missing: str = "-") -> str:
    """Return a latency given in seconds as milliseconds, without the unit."""
    return missing if seconds is None else significant(seconds * 1e3, missing=missing)


def duration(seconds: float | None, missing: str = "-") -> str:
    """Return a time span as people say it: ``45 s``, ``2 min 05 s``, ``3 h 07 min``."""
    if seconds is None or not math.isfinite(seconds):
        return missing
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def percent(fraction: float | None, missing: str = "-") -> str:
    """Return a fraction as per cent: ``12 %``, ``1.2 %``, ``0.03 %``."""
    if fraction is None or not math.isfinite(fraction):
        return missing
    value = fraction * 100
    if value == 0 or abs(value) >= 9.95:
        return f"{value:.0f} %"
    return f"{value:.1f} %" if abs(value) >= 0.095 else f"{value:.2f} %"
