# SPDX-License-Identifier: Apache-2.0
"""tests/README.md: `unit.ROOM.FILE` is tests/unit/ROOM/FILE_test.cpp or in a folder of that room, `fault.NAME` is
tests/fault/NAME_test.cpp; * stands for any text."""
import re

from . import ROOT, name_of

DOCUMENT = ROOT / "tests" / "README.md"


def exists(name):
    folder, *rest = name.split(".")
    if folder == "unit" and len(rest) == 1:  # built from several folders
        return rest[0] == "cuda_emulation" or rest[0].startswith("gpu_")
    if folder == "unit":
        return any((ROOT / "tests" / "unit" / rest[0]).rglob(f"{rest[1]}_test.cpp" if rest[1] != "*" else "*_test.cpp"))
    return (ROOT / "tests" / "fault" / f"{rest[0]}_test.cpp").is_file()


def check():
    names = re.findall(r"`((?:unit|fault)\.[\w.*]+)`", DOCUMENT.read_text())
    errors = [f"{name_of(DOCUMENT)}: no test {name}" for name in names if not exists(name)]
    if not names:
        errors.append(f"{name_of(DOCUMENT)}: names no test")
    return errors, f"{len(names)} tests"
