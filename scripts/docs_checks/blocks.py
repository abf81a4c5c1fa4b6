# SPDX-License-Identifier: Apache-2.0
"""Fenced blocks of documents, and what a machine needs to run them.

Shell blocks (```sh, or without a language where a line begins with a program that shell.py knows) and Python blocks are run by
`scripts/check_docs.py --run`. Some need what a test has not; a comment in the line before the block says so,

    <!-- needs: cluster -->

and for some programs it goes without saying (IMPLIED).
"""
import dataclasses
import re

from . import ROOT, name_of, shell

NEEDS = {
    "cluster": "Slurm or several hosts",
    "gpu": "a GPU",
    "long": "more time than a test has",
    "network": "downloads",
    "openmpi": "Open MPI's mpirun, whose options it uses",
    "mpich": "MPICH's mpiexec",
}
# What a block needs that runs this, whether or not it says so.
IMPLIED = (
    ("cluster", r"\b(srun|sbatch|scontrol|scancel|squeue|sacct|salloc|module|ssh|lfs|apptainer|singularity)\b|\.sbatch\b"),
    ("gpu", r"\b(nvidia-smi|nvcc|compute-sanitizer|nsys|ncu)\b|build/cuda|mesh\.device=cuda|-gpu\.sh|gpu-(check|bench)\.sh"),
    ("long", r"\b(cmake|ctest|cpack|ninja|make|mica-bench)\b|scripts/(test|quickstart|mutate|build-without-root)\.|build/\w+/tests/|scripts/peers/"),
    ("network", r"\b(pip|apt|apt-get|dnf|spack|conda|git clone|curl|wget)\b|install-packages\.sh|(reference-venv|build-without-root)\.sh"),
    ("openmpi", r"mpirun-\w+\.sh|--map-by|--bind-to|--mca\b|--hostfile"),
)


@dataclasses.dataclass
class Block:
    place: str      # "README.md:21"
    language: str   # "sh", "python", or what stands behind the fence
    text: str
    needs: set      # names of NEEDS


def language_of(label, text):
    if label in ("sh", "bash", "shell"):
        return "sh"
    return "sh" if label == "" and shell.looks_like_commands(text) else label


def needs_of(language, text):
    """What goes without saying."""
    if language != "sh":
        return set()
    code = re.sub(r"(^|\s)#.*$", "", text, flags=re.M)
    return {need for need, pattern in IMPLIED if re.search(pattern, code)}


def blocks_of(path):
    """@returns the blocks, and errors."""
    blocks, errors = [], []
    mark, fence, label, lines, begin = set(), None, "", [], 0
    for number, line in enumerate(path.read_text().splitlines(), 1):
        opening = re.match(r"(\s*```)(\S*)\s*$", line)
        if fence is None and opening:
            fence, label, lines, begin = opening.group(1), opening.group(2), [], number
        elif fence is not None and line.rstrip() == fence:
            text = "\n".join(lines) + "\n"
            language = language_of(label, text)
            blocks.append(Block(f"{name_of(path)}:{begin}", language, text, mark | needs_of(language, text)))
            mark, fence = set(), None
        elif fence is not None:
            lines.append(line)
        elif comment := re.match(r"\s*<!-- needs: (.*) -->\s*$", line):
            mark = set(comment.group(1).split())
            errors += [f"{name_of(path)}:{number}: a block cannot need '{need}'; expected some of {', '.join(NEEDS)}"
                       for need in sorted(mark - set(NEEDS))]
        elif line.strip() and mark:
            errors.append(f"{name_of(path)}:{number}: no block follows the comment that says what it needs")
            mark = set()
    return blocks, errors


def executed_documents():
    """Whose blocks are run, each in a folder of its own and from top to bottom."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "tests" / "docs").glob("*.md"))]
