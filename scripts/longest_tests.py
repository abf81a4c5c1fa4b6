#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the ten tests that took longest, each with the reason that tests/README.md gives for it.

    scripts/longest_tests.py build/release/durations.xml     what `ctest --output-junit durations.xml` wrote

The table below the heading "The longest tests" names tests by patterns (`mpi_fsdp_parity.*`) in its first column and gives the reason
in its last.
"""
import argparse
import fnmatch
import pathlib
import re
import sys
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = ROOT / "tests" / "README.md"
HEADING = "## The longest tests"
COUNT = 10
NONE = "no reason in tests/README.md: make it quicker, or say there why not"


def reasons():
    """[(pattern, reason)] of the table."""
    section = README.read_text().partition(HEADING + "\n")[2].partition("\n## ")[0]
    found = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and (pattern := re.fullmatch(r"`([^`]+)`", cells[0])):
            found.append((pattern.group(1), cells[-1]))
    return found


def durations(path):
    """[(seconds, name)], the longest first."""
    cases = xml.etree.ElementTree.parse(path).getroot().iter("testcase")
    return sorted(((float(case.get("time")), case.get("name")) for case in cases), reverse=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="what ctest --output-junit wrote")
    path = parser.parse_args().file
    try:
        tests = durations(path)
    except (OSError, xml.etree.ElementTree.ParseError) as error:
        print(f"mica: error: {path}: {error}; expected what ctest --output-junit writes", file=sys.stderr)
        return 2
    known = reasons()
    print(f"the longest of {len(tests)} tests, which took {sum(seconds for seconds, _ in tests):.0f} s one by one:")
    for seconds, name in tests[:COUNT]:
        reason = next((text for pattern, text in known if fnmatch.fnmatchcase(name, pattern)), NONE)
        print(f"{seconds:8.1f} s  {name:34}  {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
