#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/data/unicode_classes.cpp: which code points are letters (\\p{L}) and numbers (\\p{N}).

    python3 scripts/make_unicode_classes.py > src/data/unicode_classes.cpp

Tokenizers split text by these classes, so the table fixes token ids. It is made for Unicode 16.0, which Hugging Face's
tokenizers 0.23 uses for every code point; Python 3.14 has that version, for others `pip install unicodedata2==16.0.0`.
"""
import sys

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

VERSION = "16.0.0"


def ranges(major):
    found = []
    for code in range(0x110000):
        if unicodedata.category(chr(code))[0] != major:
            continue
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def table(name, major):
    lines, line = [], " "
    for first, last in ranges(major):
        item = f" {{0x{first:x}, 0x{last:x}}},"
        if len(line) + len(item) > 120:
            lines.append(line)
            line = " "
        line += item
    lines.append(line)
    return f"constexpr CodeRange {name}[] = {{\n" + "\n".join(lines) + "\n};\n"


def main():
    if unicodedata.unidata_version != VERSION:
        sys.exit(f"this Python knows Unicode {unicodedata.unidata_version}, expected {VERSION}: pip install unicodedata2=={VERSION}")
    print(f"""// SPDX-License-Identifier: Apache-2.0
// Made by scripts/make_unicode_classes.py from Unicode {VERSION}.

#include "unicode_classes.hpp"

namespace mica::data {{
namespace {{

// clang-format off
{table("kLetters", "L")}
{table("kNumbers", "N")}// clang-format on

}}  // namespace

std::span<const CodeRange> letter_ranges() {{ return kLetters; }}

std::span<const CodeRange> number_ranges() {{ return kNumbers; }}

}}  // namespace mica::data""")


if __name__ == "__main__":
    main()
