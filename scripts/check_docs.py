#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails where a document says what is not so: commands, flags, config keys, files, tests, messages and variables that it names
are looked up in the sources (scripts/docs_checks: one file a promise).

  scripts/check_docs.py                     the above; takes a second, needs no build
  scripts/check_docs.py --list              every block of commands, and what it needs to be run
  scripts/check_docs.py --run BUILD/bin     runs the blocks that need nothing but Mica (see docs_checks/run.py)
      --mpirun=PATH                         with this mpirun
"""
import argparse
import sys

from docs_checks import blocks, commands, files, from_pytorch, messages, references, run, tables, test_names

CHECKS = (references, tables, commands, from_pytorch, test_names, files, messages)


def list_blocks():
    for path in blocks.executed_documents():
        for block in blocks.blocks_of(path)[0]:
            if block.language in ("sh", "python"):
                print(f"{block.place}: {block.language}, {'needs ' + ', '.join(sorted(block.needs)) if block.needs else 'is run'}")


def check():
    errors, seen = [], []
    for each in CHECKS:
        found, what = each.check()
        errors += found
        seen.append(what)
    for error in errors:
        print("docs check:", error)
    print(f"docs check: {'; '.join(seen)}: {len(errors)} wrong")
    return 1 if errors else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--run", metavar="BIN")
    parser.add_argument("--mpirun", default="mpirun")
    arguments = parser.parse_args()
    if arguments.list:
        return list_blocks()
    return run.run(arguments.run, arguments.mpirun) if arguments.run else check()


if __name__ == "__main__":
    sys.exit(main())
