#!/usr/bin/env python3
"""Fails when docs/from-pytorch.md names a config key or a C++ name that does not exist.

In its tables with a config and a C++ column, every `section.key` is looked up in src/train/config_keys.cpp and every word of
a C++ name in include/ (a path must be a header).
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOC = ROOT / "docs" / "from-pytorch.md"


def main():
    keys = set(re.findall(r'"([a-z]+\.[a-z_0-9]+)"', (ROOT / "src/train/config_keys.cpp").read_text()))
    words = set()
    for path in (ROOT / "include").rglob("*.hpp"):
        words |= set(re.findall(r"[A-Za-z_]\w*", path.read_text()))
    errors, seen_keys, seen_names = [], 0, 0
    columns = None
    for number, line in enumerate(DOC.read_text().splitlines(), 1):
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
                    errors.append(f"{DOC.name}:{number}: no config key {key}")
            for name in re.findall(r"`([^`]+)`", row["C++"]):
                seen_names += 1
                if name.endswith(".hpp"):
                    if not (ROOT / "include" / name).is_file():
                        errors.append(f"{DOC.name}:{number}: no header {name}")
                    continue
                for word in name.split("::"):
                    if word not in words:
                        errors.append(f"{DOC.name}:{number}: no C++ name {word} in include/")
        elif "config" in columns:
            errors.append(f"{DOC.name}:{number}: {len(cells)} columns, expected {len(columns)}")
    for error in errors:
        print("docs check:", error)
    print(f"docs check: {seen_keys} keys and {seen_names} C++ names, {len(errors)} missing")
    return 1 if errors or not seen_keys or not seen_names else 0


if __name__ == "__main__":
    sys.exit(main())
