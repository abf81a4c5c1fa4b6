#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the parity list (docs/parity.md) to the tests: fails when one of its items has no test that names it in its own name.

A test names an item where its suite or its name begins with it: D8Precision.X, X.D8_Y, X.D8_F3_Y. Only tests that the default
build compiles and gtest runs count. An item whose text says "Mica: cannot arise" has none; docs/from-pytorch.md says why.

    scripts/check_parity_list.py            prints what is missing
    scripts/check_parity_list.py --all      prints every item's tests, too
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
LIST = ROOT / "docs" / "parity.md"
REASONS = ROOT / "docs" / "from-pytorch.md"


def items():
    """number -> text, in the order of the list."""
    found = re.findall(r"^- \*\*([A-F]\d+)\*\* (.*?)(?=^- |^$|^#|\Z)", LIST.read_text(), re.M | re.S)
    return {number: " ".join(text.split()) for number, text in found}


def reasons():
    """Numbers in parentheses in the section on what cannot arise."""
    section = re.search(r"^## What cannot arise in C\+\+$(.*?)(?=^## |\Z)", REASONS.read_text(), re.M | re.S)
    return set(re.findall(r"\(([A-F]\d+)\)", section.group(1))) if section else set()


def named_by(word):
    """The items at the beginning of a suite's or a test's name. E4M3 and D2D are none: a word follows an item, or _."""
    names = re.match(r"(?:[A-F]\d+_)*[A-F]\d+(?=_|[A-Z][a-z]|$)", word)
    return names.group().split("_") if names else []


def is_built(path, listed):
    """Whether the default build compiles a test file: those of tests/unit and tests/fault are found by their folder, others are listed."""
    parts = path.relative_to(TESTS).parts
    if parts[0] == "fault":
        return len(parts) == 2
    if parts[0] == "unit":
        return len(parts) == 3 or (len(parts) == 4 and parts[2] == "parity_list")
    return parts[0] != "gpu" and (path.name in listed or path.name.removesuffix("_test.cpp") in listed)


def tests_by_item():
    """number -> tests that name it: "Suite.Name (file)"."""
    listed = set()
    for path in TESTS.rglob("CMakeLists.txt"):
        listed |= set(re.findall(r"[\w.]+", path.read_text()))
    found = {}
    for path in sorted(TESTS.rglob("*_test.cpp")):
        if not is_built(path, listed):
            continue
        for suite, name in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", path.read_text(), re.M):
            if suite.startswith("DISABLED_") or name.startswith("DISABLED_"):
                continue
            for number in {*named_by(suite), *named_by(name)}:
                found.setdefault(number, []).append(f"{suite}.{name} ({path.relative_to(ROOT)})")
    return found


def errors_of(texts, impossible, tests):
    if not texts:
        yield f"{LIST.relative_to(ROOT)} has no items; expected lines like '- **D8** ...'"
    for number, text in texts.items():
        if number not in impossible:
            if number not in tests:
                yield f"{number} has no test that names it: {text[:70]}..."
        elif number in tests:
            yield f"{number} cannot arise, says {LIST.relative_to(ROOT)}, but {tests[number][0]} tests it: one of them is wrong"
        elif number not in reasons():
            yield f"{number} cannot arise, says {LIST.relative_to(ROOT)}, but why is not in {REASONS.relative_to(ROOT)}: ({number})"


def main():
    texts, tests = items(), tests_by_item()
    impossible = [number for number, text in texts.items() if "Mica: cannot arise" in text]
    if "--all" in sys.argv[1:]:
        for number in texts:
            print(f"{number}:", *tests.get(number, ["no test"]), sep="\n    ")
    errors = list(errors_of(texts, impossible, tests))
    for error in errors:
        print(f"parity list: {error}")
    tested = [number for number in texts if number in tests]
    print(f"parity list: {len(tested)} of {len(texts) - len(impossible)} items are named by tests; "
          f"cannot arise: {' '.join(impossible) or 'none'}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
