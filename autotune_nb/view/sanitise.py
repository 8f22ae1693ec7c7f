"""Text from networks and errors, made safe to print in a terminal or to put into HTML."""

from __future__ import annotations

import html
import re
import unicodedata

# Whole escape sequences first, so that no '[31m' is left of them: operating system commands up to
# their end, then control sequences, then two-character ones.
_ESCAPES = re.compile(
    r"(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|\x1b[ -/]*[0-~]?"
)
_SPACES = re.compile(r"\s+")
# Cc: control characters, Cf: invisible ones that can reorder a line, Cs: lone surrogates that
# cannot be encoded, Co: private use, Zl and Zp: line ends that only some programs know.
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def clean(text: str) -> str:
    """Return `text` as one printable line: no escape sequence, control or reordering character."""
    text = _SPACES.sub(" ", _ESCAPES.sub("", text))
    if text.isascii() and text.isprintable():
        return text.strip()
    kept = "".join(c for c in text if unicodedata.category(c) not in _UNPRINTABLE)
    return kept.strip()


def escape(text: str) -> str:
    """Return `text` cleaned and escaped, for use in HTML text or in a quoted attribute."""
    return html.escape(clean(text), quote=True)


def width(text: str) -> int:
    """Return how many terminal columns `text` takes."""
    if text.isascii():
        return len(text)
    columns = 0
    for c in text:
        if unicodedata.combining(c) or unicodedata.category(c) in {"Mn", "Me"}:
            continue
        columns += 2 if unicodedata.east_asian_width(c) in {"W", "F"} else 1
    return columns


def shorten(text: str, columns: int, *, ellipsis: str = "…") -> str:
    """Return `text` cut to at most `columns` terminal columns, its end marked by `ellipsis`."""
    if width(text) <= columns:
        return text
    room = columns - width(ellipsis)
    if room <= 0:
        return ellipsis[: max(0, columns)]
    kept = []
    for c in text:
        room -= width(c)
        if room < 0:
            break
        kept.append(c)
    return "".join(kept) + ellipsis


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """Return `text` filled up with spaces to `columns`; on its left side if `right`."""
    fill = " " * max(0, columns - width(text))
    return fill + text if right else text + fill
