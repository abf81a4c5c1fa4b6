# SPDX-License-Identifier: Apache-2.0
"""Tables have a header, and as many cells in each row."""
import re

from . import documents, name_of
from .references import outside_blocks


def tables_of(text):
    """Lists of (line number, row): lines with a bar at their beginning, and what follows without a blank line."""
    table = []
    for number, line in [*outside_blocks(text), (0, "")]:
        if line.startswith("|") or (table and line.strip()):
            table.append((number, line))
        elif table:
            yield table
            table = []


def cells_of(row):
    return len(re.findall(r"(?<!\\)\|", row)) - 1


def check():
    errors, seen = [], 0
    for path in documents():
        for table in tables_of(path.read_text()):
            seen += 1
            place = f"{name_of(path)}:{table[0][0]}"
            if len(table) < 2 or not re.fullmatch(r"\|([ :]*-+[ :]*\|)+", table[1][1].strip()):
                errors.append(f"{place}: a table's row without a header above it")
                continue
            for number, row in table:
                if cells_of(row) != cells_of(table[0][1]):
                    errors.append(f"{name_of(path)}:{number}: {cells_of(row)} cells in a table of {cells_of(table[0][1])} columns")
    return errors, f"{seen} tables"
