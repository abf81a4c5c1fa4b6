#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on an include that the rooms do not allow (docs/design.md, Rooms): of another room that a room may not know, or of a
foreign header outside its rooms. Also on a missing include that only some versions of a library need, and on functions of a newer glibc
than docs/install.md asks for.

    scripts/check_includes.py            checks include/, src/ and apps/ of this checkout; for missing includes and glibc, tests/ and examples/, too
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# module -> modules it names directly; edges are transitive.
DIRECT = {
    "core": [],
    "device": ["core"],
    "mpi": ["core"],
    "launch": ["mpi"],
    "io": ["core"],
    "tensor": ["device"],
    "comm": ["tensor", "launch", "io"],
    "nn": ["tensor"],
    "fsdp": ["nn", "comm"],
    "optim": ["fsdp"],
    "data": ["io", "comm"],
    "checkpoint": ["optim", "data", "io"],
    "plan": ["fsdp", "io"],
    "train": ["checkpoint", "plan", "data", "optim"],
    "generate": ["train"],
    "report": ["train"],
    "apps": ["generate", "report"],
}

# foreign header (regular expression) -> rooms it may be included in
FOREIGN = {
    r"mpi\.h$": ["mpi", "launch", "comm"],
    r"nccl\.h$": ["comm"],
    r"(cuda|cublas|cudnn|nvtx).*\.h(pp)?$": ["device", "tensor", "comm"],
    r"(hdf5|H5public)\.h$": ["io"],
    r"boost/program_options": ["train", "generate", "apps"],
    r"(dnnl|oneapi/).*": ["tensor"],
    r"omp\.h$": ["tensor"],
    r"sentencepiece": ["data"],
}

# what a file uses (regular expression) -> header that it must include
NEEDED = {
    r"\bfmt::join\b": "fmt/ranges.h",  # since fmt 11; fmt 9 and 10 have it in fmt/format.h
}

# what glibc has only since 2.29 to 2.36; docs/install.md promises that 2.28 serves
NEWER_GLIBC = (r"\b(gettid|tgkill|getcpu|close_range|closefrom|sigabbrev_np|sigdescr_np|strerrorname_np|strerrordesc_np|getdents64"
               r"|epoll_pwait2|mallinfo2|pidfd_\w+|process_madvise|_Fork|arc4random\w*|pthread_\w*(?:clockjoin|clockwait|clocklock|clockrdlock|clockwrlock)\w*"
               r"|sem_clockwait|posix_spawn_file_actions_add(?:chdir|fchdir|closefrom|tcsetpgrp)_np|twalk_r)\s*\(")


def sources(*folders):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".hpp", ".cpp", ".h", ".cu", ".cuh"):
                yield path


def missing_includes():
    for path in sources("include", "src", "apps", "tests", "examples"):
        text = path.read_text()
        for used, header in NEEDED.items():
            found = re.search(used, text)
            if found and f"#include <{header}>" not in text:
                yield f"{path.relative_to(ROOT)}:{text[:found.start()].count(chr(10)) + 1}: {found[0]} needs #include <{header}>"


def newer_calls():
    for path in sources("include", "src", "apps", "tests", "examples"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = re.search(NEWER_GLIBC, line.partition("//")[0])
            if found:
                yield f"{path.relative_to(ROOT)}:{number}: {found[1]}() is not in glibc 2.28, which docs/install.md says serves"


def reachable(module):
    found, todo = {module}, list(DIRECT[module])
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += DIRECT[name]
    return found


def module_of(path):
    parts = path.relative_to(ROOT).parts
    if parts[0] == "include":
        return parts[2]
    return "apps" if parts[0] == "apps" else parts[1]


def main():
    errors, files = [*missing_includes(), *newer_calls()], 0
    for path in sources("include", "src", "apps"):
        files += 1
        module = module_of(path)
        if module not in DIRECT:
            errors.append(f"{path.relative_to(ROOT)}: no module named {module}; the modules are {', '.join(DIRECT)}")
            continue
        allowed = reachable(module)
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
            if not match:
                continue
            name, place = match.group(1), f"{path.relative_to(ROOT)}:{number}"
            if name.startswith("mica/"):
                other = name.split("/")[1]
                if other not in allowed:
                    errors.append(f"{place}: {module} includes {name}, but may include only {', '.join(sorted(allowed))}")
            for pattern, rooms in FOREIGN.items():
                if re.match(pattern, name) and module not in rooms:
                    errors.append(f"{place}: <{name}> is allowed in {', '.join(rooms)} only, not in {module}")
    for error in errors:
        print("include check:", error)
    print(f"include check: {files} files, {len(errors)} violations")
    return 1 if errors or not files else 0


if __name__ == "__main__":
    sys.exit(main())
