#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when docs/library.md shows C++ or CMake that examples/classifier does not hold.

Every ```cpp block must be lines of examples/classifier/classifier.cpp, one behind the other and all indented alike further
than in the document; every ```cmake block likewise of its CMakeLists.txt. So what the document explains is compiled and run.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOC = ROOT / "docs" / "library.md"
SOURCES = {"cpp": ROOT / "examples/classifier/classifier.cpp", "cmake": ROOT / "examples/classifier/CMakeLists.txt"}


def dedented(lines):
    """Without the indentation that all have."""
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    least = min(indents, default=0)
    return [line[least:].rstrip() for line in lines]


def is_in(block, source):
    return any(dedented(source[at : at + len(block)]) == block for at in range(len(source) - len(block) + 1))


def main():
    sources = {language: path.read_text().splitlines() for language, path in SOURCES.items()}
    errors, seen = [], 0
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", DOC.read_text(), re.MULTILINE | re.DOTALL):
        language, text = match.groups()
        if language not in sources:
            continue
        seen += 1
        if not is_in(dedented(text.splitlines()), sources[language]):
            line = DOC.read_text()[: match.start()].count("\n") + 1
            errors.append(f"{DOC.relative_to(ROOT)}:{line}: this block is not in {SOURCES[language].relative_to(ROOT)}")
    if seen < 8:
        errors.append(f"{DOC.relative_to(ROOT)}: only {seen} blocks of code were found")
    print("\n".join([*errors, f"library doc check: {seen} blocks, {len(errors)} errors"]))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
