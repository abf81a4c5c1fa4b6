# SPDX-License-Identifier: Apache-2.0
"""docs/from-pytorch.md: in its tables every `section.key` of the column config is a key, and every word of a C++ name is in
include/ (a path must be a header)."""
import re

from . import ROOT, config_keys, name_of

DOCUMENT = ROOT / "docs" / "from-pytorch.md"


def check():
    """@returns errors, and what was looked at."""
    keys = config_keys()
    words = set()
    for path in (ROOT / "include").rglob("*.hpp"):
        words |= set(re.findall(r"[A-Za-z_]\w*", path.read_text()))
    errors, seen_keys, seen_names = [], 0, 0
    columns = None
    for number, line in enumerate(DOCUMENT.read_text().splitlines(), 1):
        place = f"{name_of(DOCUMENT)}:{number}"
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            columns = None
        elif columns is None:
            columns = cells
        elif "config" in columns and len(cells) == len(columns):
            row = dict(zip(columns, cells))
            for key in re.findall(r"`([^`]+)`", row["config"]):
                seen_keys += 1
                if key not in keys:
                    errors.append(f"{place}: no config key {key}")
            for name in re.findall(r"`([^`]+)`", row["C++"]):
                seen_names += 1
                if name.endswith(".hpp"):
                    if not (ROOT / "include" / name).is_file():
                        errors.append(f"{place}: no header {name}")
                    continue
                errors += [f"{place}: no C++ name {word} in include/" for word in name.split("::") if word not in words]
        elif "config" in columns:
            errors.append(f"{place}: {len(cells)} columns, expected {len(columns)}")
    if not seen_keys or not seen_names:
        errors.append(f"{name_of(DOCUMENT)}: no tables with the columns config and C++")
    return errors, f"{seen_keys} keys and {seen_names} C++ names for those who come from PyTorch"
