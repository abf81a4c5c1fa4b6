#!/usr/bin/env python3
"""Lists the numbers of the parity list (tests/parity_list.txt) with the test files that cite them, and fails when a number
that is declared covered has lost its last test, or when one that is declared impossible in C++ is not in the section of
docs/from-pytorch.md that says why.

    scripts/check_parity_list.py            prints the numbers without a test
    scripts/check_parity_list.py --all      prints every number with its files
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "parity_list.txt"
DOC = ROOT / "docs" / "from-pytorch.md"
SOURCES = {".cpp", ".hpp", ".py", ".sh", ".cmake"}


def declared():
    """number -> "tested", "missing" (in brackets) or "impossible" (in parentheses)."""
    kinds = {"": "tested", "[]": "missing", "()": "impossible"}
    numbers = {}
    for line in LIST.read_text().splitlines():
        for word in line.split("#")[0].split():
            match = re.fullmatch(r"([\[(]?)([A-F]\d+)([\])]?)", word)
            if not match or match.group(1) + match.group(3) not in kinds:
                sys.exit(f"parity list: {LIST.relative_to(ROOT)} has '{word}', expected a number like D8, [D8] or (D8)")
            numbers[match.group(2)] = kinds[match.group(1) + match.group(3)]
    return numbers


def documented():
    """Numbers in parentheses in the document's section on what cannot arise."""
    section = re.search(r"^## What cannot arise in C\+\+$(.*?)(?=^## |\Z)", DOC.read_text(), re.M | re.S)
    return set(re.findall(r"\(([A-F]\d+)\)", section.group(1))) if section else set()


def citations():
    """number -> test files, by `D8` standing alone or at the start of a test's name (D8_Norms)."""
    found = {}
    for path in sorted((ROOT / "tests").rglob("*")):
        if path.suffix not in SOURCES or not path.is_file():
            continue
        for number in set(re.findall(r"(?<![A-Za-z0-9])([A-F]\d+)(?![A-Za-z0-9])", path.read_text(errors="replace"))):
            found.setdefault(number, []).append(str(path.relative_to(ROOT)))
    return found


def main():
    numbers, found = declared(), citations()
    lost = [n for n, kind in numbers.items() if kind == "tested" and n not in found]
    gained = [n for n, kind in numbers.items() if kind == "missing" and n in found]
    impossible = [n for n, kind in numbers.items() if kind == "impossible"]
    unexplained = [n for n in impossible if n not in documented()]
    if "--all" in sys.argv[1:]:
        for number in numbers:
            print(f"{number:4} {', '.join(found.get(number, ['no test']))}")
    for number in lost:
        print(f"parity list: no test cites {number} any more: restore it, or put {number} in brackets in {LIST.relative_to(ROOT)}")
    for number in gained:
        print(f"parity list: {number} is in brackets but cited by {found[number][0]}: take the brackets away")
    for number in unexplained:
        print(f"parity list: {number} is declared impossible, but '({number})' is not in {DOC.relative_to(ROOT)}, What cannot arise in C++")
    without = [n for n in numbers if n not in found and n not in impossible]
    print(f"parity list: {len(numbers) - len(without) - len(impossible)} of {len(numbers)} numbers have a test; "
          f"cannot arise: {' '.join(impossible) or 'none'}; without: {' '.join(without) or 'none'}")
    return 1 if lost or unexplained or not numbers else 0


if __name__ == "__main__":
    sys.exit(main())
