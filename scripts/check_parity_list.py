#!/usr/bin/env python3
"""Holds the parity list (tests/parity_list.txt) to the tests: fails when a number names no test, or one that no test file of
the build defines, or when one that is declared impossible in C++ is not in the section of docs/from-pytorch.md that says why.

    scripts/check_parity_list.py            prints what is wrong, and the numbers without a test
    scripts/check_parity_list.py --all      prints every number with the files of its tests
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
LIST = TESTS / "parity_list.txt"
DOC = ROOT / "docs" / "from-pytorch.md"


class Number:
    def __init__(self, kind, tests):
        self.kind = kind  # "tested", "missing" (in brackets) or "impossible" (in parentheses)
        self.tests = tests


def declared():
    """number -> Number, in the order of the list."""
    kinds = {"": "tested", "[]": "missing", "()": "impossible"}
    numbers = {}
    current = None
    for line in LIST.read_text().splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        if not line[0].isspace():
            match = re.fullmatch(r"([\[(]?)([A-F]\d+)([\])]?)", words.pop(0))
            if not match or match.group(1) + match.group(3) not in kinds:
                sys.exit(f"parity list: {LIST.relative_to(ROOT)} has '{line}', expected a number like D8, [D8] or (D8), then tests")
            if match.group(2) in numbers:
                sys.exit(f"parity list: {LIST.relative_to(ROOT)} has {match.group(2)} twice")
            current = numbers[match.group(2)] = Number(kinds[match.group(1) + match.group(3)], [])
        if current is None:
            sys.exit(f"parity list: {LIST.relative_to(ROOT)} begins with '{line}', expected a number")
        current.tests += words
    return numbers


def documented():
    """Numbers in parentheses in the document's section on what cannot arise."""
    section = re.search(r"^## What cannot arise in C\+\+$(.*?)(?=^## |\Z)", DOC.read_text(), re.M | re.S)
    return set(re.findall(r"\(([A-F]\d+)\)", section.group(1))) if section else set()


def is_built(path, listed):
    """Whether the default build compiles a test file: unit tests are found by their folder, others are listed."""
    parts = path.relative_to(TESTS).parts
    if parts[0] == "unit":
        return len(parts) == 3 or (len(parts) == 4 and parts[2] == "parity_list")
    return parts[0] != "gpu" and (path.name in listed or path.name.removesuffix("_test.cpp") in listed)


def defined():
    """Suite.Name -> its file, of every test that the build compiles and gtest runs."""
    listed = set()
    for path in TESTS.rglob("CMakeLists.txt"):
        listed |= set(re.findall(r"[\w.]+", path.read_text()))
    found = {}
    for path in sorted(TESTS.rglob("*_test.cpp")):
        if not is_built(path, listed):
            continue
        for suite, name in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", path.read_text(), re.M):
            if not suite.startswith("DISABLED_") and not name.startswith("DISABLED_"):
                found.setdefault(f"{suite}.{name}", str(path.relative_to(ROOT)))
    return found


def errors_of(numbers, tests):
    for number, entry in numbers.items():
        if entry.kind == "tested" and not entry.tests:
            yield f"{number} names no test: name one, or put {number} in brackets"
        if entry.kind != "tested" and entry.tests:
            yield f"{number} names {entry.tests[0]}, but is in brackets or parentheses: take these away, or the test"
        if entry.kind == "impossible" and number not in documented():
            yield f"{number} is declared impossible, but '({number})' is not in {DOC.relative_to(ROOT)}, What cannot arise in C++"
        for test in entry.tests:
            if test not in tests:
                yield f"{number} names {test}, which no test file of the build defines: restore it, or name the test that took its place"


def main():
    numbers, tests = declared(), defined()
    if "--all" in sys.argv[1:]:
        for number, entry in numbers.items():
            files = sorted({tests[test] for test in entry.tests if test in tests})
            print(f"{number:4} {', '.join(files) or 'no test'}")
    errors = list(errors_of(numbers, tests))
    for error in errors:
        print(f"parity list: {LIST.relative_to(ROOT)}: {error}")
    by_kind = {kind: [n for n, entry in numbers.items() if entry.kind == kind] for kind in ("tested", "missing", "impossible")}
    print(f"parity list: {len(by_kind['tested'])} of {len(numbers) - len(by_kind['impossible'])} numbers have tests; "
          f"cannot arise: {' '.join(by_kind['impossible']) or 'none'}; without: {' '.join(by_kind['missing']) or 'none'}")
    return 1 if errors or not numbers else 0


if __name__ == "__main__":
    sys.exit(main())
