# SPDX-License-Identifier: Apache-2.0
"""tests/README.md: `unit.ROOM.FILE` is tests/unit/ROOM/FILE_test.cpp or in a folder of that room, `fault.NAME` is
tests/fault/NAME_test.cpp, `cluster.NAME` is tests/cluster/NAME_test.cpp, `mpi_NAME` is registered in tests/mpi; * stands for any text."""
import functools
import re

from . import ROOT, name_of

DOCUMENT = ROOT / "tests" / "README.md"


@functools.cache
def registered_under_mpi():
    texts = [path.read_text() for path in (ROOT / "tests" / "mpi").rglob("CMakeLists.txt")]
    return {name for text in texts for name in re.findall(r"add_test\(NAME (mpi_\w+)", text)}


def exists(name):
    folder, *rest = name.split(".")
    if folder.startswith("mpi_"):
        return folder in registered_under_mpi()
    if folder == "unit" and len(rest) == 1:  # built from several folders
        return rest[0] == "cuda_emulation" or rest[0].startswith("gpu_")
    if folder == "unit":
        return any((ROOT / "tests" / "unit" / rest[0]).rglob(f"{rest[1]}_test.cpp" if rest[1] != "*" else "*_test.cpp"))
    return (ROOT / "tests" / folder / f"{rest[0]}_test.cpp").is_file()


def check():
    names = re.findall(r"`((?:(?:unit|fault|cluster)\.|mpi_)[\w.*]+)`", DOCUMENT.read_text())
    errors = [f"{name_of(DOCUMENT)}: no test {name}" for name in names if not exists(name)]
    if not names:
        errors.append(f"{name_of(DOCUMENT)}: names no test")
    return errors, f"{len(names)} tests"
