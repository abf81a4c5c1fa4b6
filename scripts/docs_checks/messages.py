# SPDX-License-Identifier: Apache-2.0
"""docs/troubleshooting.md: every message that its tables quote stands in the sources. `...` stands for what a message fills in.
Tables below a heading that names another program's messages are not looked up."""
import re

from . import ROOT, name_of

DOCUMENT = ROOT / "docs" / "troubleshooting.md"
FOREIGN = "## Messages of other programs"
FILLED_IN = "\0"


def unescaped(text):
    return re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m.group(1), m.group(1)), text)


def texts_of(source):
    """String literals of a C++ or shell source, neighbours joined; what fmt fills in is FILLED_IN."""
    source = re.sub(r"^\s*//.*$", "", source, flags=re.M)
    literal = r'"(?:[^"\\\n]|\\.)*"'
    for match in re.finditer(rf"{literal}(?:\s*{literal})*", source):
        parts = re.findall(r'"((?:[^"\\\n]|\\.)*)"', match.group(0))
        text = unescaped("".join(parts)).replace("{{", "\1").replace("}}", "\2")
        yield re.sub(r"\{[^{}]*\}", FILLED_IN, text).replace("\1", "{").replace("\2", "}")


def all_texts():
    texts = []
    for folder, patterns in (("src", ("*.cpp", "*.hpp", "*.cu", "*.cuh")), ("include", ("*.hpp",)), ("apps", ("*.cpp", "*.hpp")),
                             ("scripts", ("*.sh", "*.py"))):
        for pattern in patterns:
            for path in sorted((ROOT / folder).rglob(pattern)):
                texts += texts_of(path.read_text())
    return texts


def stands_in(quoted, text):
    """Whether the quoted message's pieces, in their order, are pieces of one text."""
    at = 0
    for piece in quoted.split("..."):
        at = text.find(piece.strip(" "), at)
        if at < 0:
            return False
        at += len(piece.strip(" "))
    return True


def quoted_messages():
    """(line number, message) of the first column of every table about Mica's own messages."""
    is_own = True
    for number, line in enumerate(DOCUMENT.read_text().splitlines(), 1):
        if line.startswith("## "):
            is_own = line != FOREIGN
        match = re.match(r"\| `([^`]+)` \|", line)
        if match and is_own:
            yield number, match.group(1).replace("\\|", "|")


def check():
    texts = all_texts()
    errors, seen = [], 0
    for number, message in quoted_messages():
        seen += 1
        if len(message.replace("...", "")) < 15:
            errors.append(f"{name_of(DOCUMENT)}:{number}: quote more of '{message}', which could be anything")
        if not any(stands_in(message, text) for text in texts):
            errors.append(f"{name_of(DOCUMENT)}:{number}: no source holds the message '{message}'")
    if seen < 40:
        errors.append(f"{name_of(DOCUMENT)}: {seen} messages, expected 40 or more")
    return errors, f"{seen} messages"
