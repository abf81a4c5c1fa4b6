#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on a citation of a place in docs/ that does not exist.

Sources and documents cite a section as docs/design.md, The schedule (any file in docs/, by heading; the numbers of items in
the section's list may follow) and an item of the parity list as docs/parity.md D8 (more items may follow in the same
sentence). The comment of a test may begin with the bare number: D8.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
CITING = ("src", "include", "apps", "tests", "scripts", "configs", "docs", ".ci")


def sections(path):
    """heading -> the numbers of the list below it."""
    found, numbers = {}, set()
    for line in path.read_text().splitlines():
        if heading := re.match(r"#+ (.+)", line):
            found[heading.group(1).strip()] = numbers = set()
        elif item := re.match(r"(\d+)\. ", line):
            numbers.add(item.group(1))
    return found


def texts():
    """(path, text) of every file that may cite; what is not UTF-8 is data."""
    paths = [path for folder in CITING for path in sorted((ROOT / folder).rglob("*"))] + sorted(ROOT.glob("*.md"))
    for path in paths:
        if path.is_file() and path != pathlib.Path(__file__).resolve():
            try:
                yield path, path.read_text()
            except UnicodeDecodeError:
                pass


def unwrapped(path, text):
    """The text with spaces for line breaks inside a comment or a paragraph; nothing moves."""
    wrap = r"\n(?![\n|#-])" if path.suffix == ".md" else r"\n[ \t]*(?://+<?|#+)[ \t]"
    return re.sub(wrap, lambda match: " " * len(match.group()), text)


def first_sentence(text):
    """Ends also where a parenthesis closes that was opened before it."""
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth < 0 or c == "\n" or (c in ".:;" and text[i + 1:i + 2].isspace()):
            return text[:i]
    return text


def section_errors(name, headings, cited):
    """@param cited  begins with a heading of docs/name.md."""
    heading = max((h for h in headings if re.match(re.escape(h) + r"(?!\w)", cited)), key=len, default=None)
    if heading is None:
        yield f"docs/{name}.md has no section '{cited[:30]}...'"
        return
    numbers = re.match(r"(?:(?:,| and| to)? \d+\b)*", cited[len(heading):]).group()
    for number in re.findall(r"\d+", numbers):
        if number not in headings[heading]:
            yield f"docs/{name}.md, {heading}, has no item {number}"


def item_errors(items, numbers):
    for number in numbers:
        if number not in items:
            yield f"docs/parity.md has no item {number}"


def citations(docs, items, path, text):
    """(position, errors) of each in a text."""
    for gone in re.finditer(r"\b(?:FEATURES|DESIGN)\b", text):
        yield gone.start(), [f"cites {gone.group()}, a text that is not in the repository: cite docs/parity.md or docs/design.md"]
    flat = unwrapped(path, text)
    for citation in re.finditer(r"\bdocs/([\w-]+)\.md(,\s+(?=[A-Z])|\s+(?=[A-Z]\d))?", flat):
        name, more = citation.group(1), citation.group(2) or ""
        rest = flat[citation.end():citation.end() + 500]
        errors = []
        if name not in docs:
            errors = [f"docs/{name}.md does not exist"]
        elif more.startswith(","):
            errors = section_errors(name, docs[name], " ".join(rest.split()))
        elif more and name == "parity":
            others = re.findall(r"(?<![\w.])[A-F]\d{1,2}(?!\w)", first_sentence(rest))
            errors = item_errors(items, dict.fromkeys([re.match(r"\w+", rest).group(), *others]))
        yield citation.start(), list(errors)
    if path.is_relative_to(ROOT / "tests"):
        for comment in re.finditer(r"^[ \t]*//+ ((?:[A-F]\d{1,2}(?:, )?)+)(?=[:.]|$)", text, re.M):
            yield comment.start(1), list(item_errors(items, comment.group(1).split(", ")))


def main():
    docs = {path.stem: sections(path) for path in DOCS.glob("*.md")}
    items = set(re.findall(r"^- \*\*([A-F]\d+)\*\*", (DOCS / "parity.md").read_text(), re.M))
    num_seen = num_wrong = 0
    for path, text in texts():
        for position, errors in citations(docs, items, path, text):
            num_seen += 1
            num_wrong += len(errors)
            for error in errors:
                line = text.count("\n", 0, position) + 1
                print(f"citation check: {path.relative_to(ROOT)}:{line}: {error}")
    print(f"citation check: {num_seen} citations of docs/, {num_wrong} wrong")
    return 1 if num_wrong or not num_seen else 0


if __name__ == "__main__":
    sys.exit(main())
