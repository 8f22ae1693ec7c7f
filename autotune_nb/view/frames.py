"""Small DataFrames as plain text and as HTML: numbers with four digits, text made safe."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from autotune_nb.view.markup import STYLE
from autotune_nb.view.sanitise import clean, escape, pad, shorten, width
from autotune_nb.view.text import to_ascii
from autotune_nb.view.units import significant

_ENOUGH = 12  # columns of a text that tell most apart


def cell(value: Any) -> str:
    """Return one value as text; ``-`` for what is not known."""
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return significant(value)
    return clean(str(value))


def _cells(table: pd.DataFrame) -> list[list[str]]:
    return [[cell(value) for value in table[column].tolist()] for column in table.columns]


def _numeric(table: pd.DataFrame) -> list[bool]:
    return [
        pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype)
        for dtype in table.dtypes
    ]


def to_text(table: pd.DataFrame, columns: int = 100, *, ascii_only: bool = False) -> str:
    """Return a table as text; the widest texts are cut so that lines fit into `columns`."""
    titles = [clean(str(column)) for column in table.columns]
    cells, right = _cells(table), _numeric(table)
    widths = [
        max(width(title), *map(width, column), 0)
        for title, column in zip(titles, cells, strict=True)
    ]
    texts = [index for index, number in enumerate(right) if not number]
    while texts and sum(widths) + 2 * (len(widths) - 1) > columns:
        widest = max(texts, key=lambda index: widths[index])
        if widths[widest] <= _ENOUGH:
            break
        widths[widest] -= 1
    ruler = "-" * min(columns, sum(widths) + 2 * (len(widths) - 1))

    def line(row: list[str]) -> str:
        parts = zip(row, widths, right, strict=True)
        text = "  ".join(
            pad(shorten(part, size), size, right=number) for part, size, number in parts
        )
        return shorten(text.rstrip(), columns)

    rows = [line(list(row)) for row in zip(*cells, strict=True)]
    text = "\n".join([line(titles), ruler, *rows])
    return to_ascii(text) if ascii_only else text


def to_html(table: pd.DataFrame, max_rows: int = 200) -> str:
    """Return a table as HTML in the look of the other tables; further rows are only counted."""
    shown = table.iloc[:max_rows]
    left = ["" if number else " class=l" for number in _numeric(table)]
    head = "".join(
        f"<th scope='col'{side}>{escape(str(column))}</th>"
        for column, side in zip(table.columns, left, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{side}>{escape(shorten(text, 120))}</td>"
            for text, side in zip(row, left, strict=True)
        )
        + "</tr>"
        for row in zip(*_cells(shown), strict=True)
    )
    hidden = len(table) - len(shown)
    note = f"<div class='muted'>and {hidden} more rows</div>" if hidden else ""
    return (
        f"{STYLE}<div class='atnb'><div class='atnb-scroll'><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>{note}</div>"
    )
