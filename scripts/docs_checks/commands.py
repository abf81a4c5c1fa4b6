# SPDX-License-Identifier: Apache-2.0
"""Every command in a document's blocks, and every one in backticks that calls a program of Mica's, names programs, flags, config
keys, scripts and files that exist; so do config files in blocks."""
import re

from . import config_keys, documents, name_of
from .blocks import blocks_of
from .references import outside_blocks
from .shell import PROGRAMS, Checker

# What begins a command, in prose.
CALL = (rf"(\$bin/|build/\w+/bin/)?({'|'.join(PROGRAMS)})( |$)|(mpirun|mpiexec|srun|sbatch|cmake) "
        r"|scripts/[\w/-]+\.(sh|py)( |$)")


def here_documents(text):
    """(file name, body) of `cat > FILE <<'EOF'`."""
    return re.findall(r">\s*(\S+)\s+<<-?\s*['\"]?(\w+)['\"]?\n(.*?)\n\2$", text, flags=re.S | re.M)


def errors_of_config(text, keys):
    errors, section = [], ""
    for line in text.splitlines():
        line = line.strip()
        if heading := re.fullmatch(r"\[(\w+)\].*", line):
            section = heading.group(1)
        elif setting := re.match(r"(\w+)\s*=", line):
            name = f"{section}.{setting.group(1)}"
            if name not in keys:
                errors.append(f"no config key {name}")
    return errors


def inline_commands(line):
    for code in re.findall(r"`([^`]+)`", line):
        if re.match(CALL, code):
            yield re.sub(r"[\[\]]", "", code)


def check():
    checker, keys, errors, num_blocks = Checker(), config_keys(), [], 0
    for path in documents():
        blocks, wrong = blocks_of(path)
        errors += wrong
        for block in blocks:
            found = []
            if block.language == "sh":
                num_blocks += 1
                found = checker.errors_of(block.text)
                for name, _, body in here_documents(block.text):
                    if name.endswith(".cfg"):
                        found += errors_of_config(body, keys)
            elif block.language == "ini":
                found = errors_of_config(block.text, keys)
            errors += [f"{block.place}: {error}" for error in found]
        for number, line in outside_blocks(path.read_text()):
            for code in inline_commands(line):
                errors += [f"{name_of(path)}:{number}: {error}" for error in checker.errors_of(code, is_prose=True)]
    return errors, f"{checker.seen} commands, {num_blocks} blocks of them"
