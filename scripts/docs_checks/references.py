# SPDX-License-Identifier: Apache-2.0
"""Links to files, and config keys and files that a document names in backticks, exist."""
import re

from . import ROOT, config_keys, documents, name_of

SUFFIXES = {"txt", "h5", "cfg", "json", "jsonl", "md", "py", "sh", "cpp", "hpp", "lock", "toml"}
# The first column of its tables names fields of JSON, which look like keys.
FIELDS_DOCUMENT = ROOT / "docs" / "files.md"
FOLDERS = ("docs/", "scripts/", "configs/", "tests/", "src/", "include/", "apps/")

# What stands for any name in a path.
PLACEHOLDER = re.compile("NAME|ROOM")


def outside_blocks(text):
    """(line number, line) of the prose."""
    in_block = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_block = not in_block
        elif not in_block:
            yield number, line


def key_named_by(code, sections):
    """`optim.lr`, `optim.lr=1e-3`, `--optim.lr` -> optim.lr; None for anything else."""
    match = re.fullmatch(r"(?:--)?([a-z]+)\.([a-z_0-9]+)( ?= ?.*)?", code)
    if not match or match.group(1) not in sections or match.group(2) in SUFFIXES:
        return None
    return f"{match.group(1)}.{match.group(2)}"


def check():
    keys = config_keys()
    sections = {key.split(".")[0] for key in keys}
    errors, seen = [], 0
    for path in documents():
        for number, line in outside_blocks(path.read_text()):
            place = f"{name_of(path)}:{number}"
            if path == FIELDS_DOCUMENT:
                line = re.sub(r"^\| `[^`]+` \|", "|", line)
            for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", line):
                if "://" in target or target.startswith("mailto:"):
                    continue
                seen += 1
                if not (path.parent / target).exists():
                    errors.append(f"{place}: the link {target} leads nowhere")
            for name in re.findall(r"\bdocs/[\w-]+\.md\b", re.sub(r"\[[^\]]*\]\([^)]*\)|`[^`]*`", "", line)):
                seen += 1
                if not (ROOT / name).is_file():
                    errors.append(f"{place}: no document {name}")
            for code in re.findall(r"`([^`]+)`", line):
                key = key_named_by(code, sections)
                if key is not None:
                    seen += 1
                    if key not in keys:
                        errors.append(f"{place}: no config key {key}")
                elif code.startswith(FOLDERS) and re.fullmatch(r"[\w./*-]+", code):
                    seen += 1
                    if not any(ROOT.glob(PLACEHOLDER.sub("*", code.rstrip("/")))):
                        errors.append(f"{place}: no file {code}")
    return errors, f"{seen} links, keys and files"
