#!/usr/bin/env python3
"""Fails when docs/from-pytorch.md names a config key or a C++ name, tests/README.md a test, or CONTRIBUTING.md a file, that
does not exist.

In the tables with a config and a C++ column, every `section.key` is looked up in src/train/config_keys.cpp and every word of
a C++ name in include/ (a path must be a header). A test `unit.ROOM.FILE` is tests/unit/ROOM/FILE_test.cpp or in a folder of
that room, `fault.NAME` is tests/fault/NAME_test.cpp; * stands for any text. In CONTRIBUTING.md NAME and ROOM do.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOC = ROOT / "docs" / "from-pytorch.md"


TESTS = ROOT / "tests" / "README.md"


def missing_tests():
    """Names of tests in tests/README.md, and those without a file."""
    names = re.findall(r"`((?:unit|fault)\.[\w.*]+)`", TESTS.read_text())
    missing = []
    for name in names:
        folder, *rest = name.split(".")
        if folder == "unit" and len(rest) == 1:  # built from several folders
            found = rest[0] == "cuda_emulation" or rest[0].startswith("gpu_")
        elif folder == "unit":
            found = any((ROOT / "tests" / "unit" / rest[0]).rglob(f"{rest[1]}_test.cpp" if rest[1] != "*" else "*_test.cpp"))
        else:
            found = (ROOT / "tests" / "fault" / f"{rest[0]}_test.cpp").is_file()
        if not found:
            missing.append(f"{TESTS.name}: no test {name}")
    return names, missing


def missing_files():
    """Paths in CONTRIBUTING.md, and those where nothing is."""
    doc = ROOT / "CONTRIBUTING.md"
    paths = set(re.findall(r"`((?:apps|configs|docs|include|scripts|src|tests)/[^\s`]*)", doc.read_text()))
    missing = [path for path in sorted(paths) if not any(ROOT.glob(re.sub("NAME|ROOM", "*", path.rstrip("/"))))]
    return paths, [f"{doc.name}: no file {path}" for path in missing]


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
    tests, missing = missing_tests()
    errors += missing
    files, missing = missing_files()
    errors += missing
    for error in errors:
        print("docs check:", error)
    print(f"docs check: {seen_keys} keys, {seen_names} C++ names, {len(tests)} tests and {len(files)} files, {len(errors)} missing")
    return 1 if errors or not seen_keys or not seen_names or not tests or not files else 0


if __name__ == "__main__":
    sys.exit(main())
