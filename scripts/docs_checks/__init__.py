# SPDX-License-Identifier: Apache-2.0
"""What scripts/check_docs.py is made of: a file for each thing that documents promise."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def name_of(path):
    return str(path.relative_to(ROOT))


def documents():
    """What users and developers read."""
    found = [ROOT / "README.md", *ROOT.glob("CONTRIBUTING.md")]
    for folder in ("docs", "scripts", "src", "tests"):
        found += sorted((ROOT / folder).rglob("*.md"))
    return found


def config_keys():
    """Every key, also under names that it had before."""
    return set(re.findall(r'"([a-z]+\.[a-z_0-9]+)"', (ROOT / "src/train/config_keys.cpp").read_text()))
