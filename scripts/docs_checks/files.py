# SPDX-License-Identifier: Apache-2.0
"""docs/files.md: its tables of exit statuses, environment variables, HDF5 datasets and metrics' events are those of the sources.
(The fields of JSON are held to it by unit_train, FilesDoc.)"""
import re

from . import ROOT, name_of

DOCUMENT = ROOT / "docs" / "files.md"
# Full string literals that are names of environment variables, whoever asks for them.
VARIABLE = r'"((?:MICA|OMPI|PMIX|PMI|SLURM|OMP|CUDA|NCCL|HWLOC)_[A-Za-z_0-9]+)"'
# Names that look like variables and are others' constants.
NO_VARIABLES = r"CUDA_(SUCCESS|ERROR_\w+)"


def sources(*folders):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".cpp", ".hpp", ".cu", ".cuh"):
                yield path, path.read_text()


def rows_below(heading):
    """First cells of all tables below a heading of that level, until the next one."""
    rows, is_below = [], False
    for line in DOCUMENT.read_text().splitlines():
        if re.match(r"#+ ", line) and line.split(" ")[0] <= heading.split(" ")[0]:
            is_below = line == heading
        if is_below and line.startswith("| ") and "`" in line.split("|")[1]:
            rows += re.findall(r"`([^`]+)`", line.split("|")[1])
    return rows


def compare(what, in_document, in_sources):
    """@param in_sources  name -> a source that has it."""
    errors = [f"{name_of(DOCUMENT)}: {what} {name} is in no source" for name in sorted(in_document - set(in_sources))]
    return errors + [f"{name_of(DOCUMENT)}: {what} {name} is missing, {place} has it"
                     for name, place in sorted(in_sources.items()) if name not in in_document]


def found_in(places):
    """@param places  (path, names there) pairs. @returns name -> the first source that has it."""
    names = {}
    for path, found in places:
        for name in found:
            names.setdefault(name, name_of(path))
    return names


def variables_of_programs():
    def named(text):
        literals = {name for name in re.findall(VARIABLE, text) if not re.fullmatch(NO_VARIABLES, name)}
        return literals | set(re.findall(r'getenv\("(\w+)"', text)) | ({"TMPDIR"} if "temp_directory_path" in text else set())

    return found_in((path, named(text)) for path, text in sources("src", "include", "apps"))


def variables_of_scripts():
    paths = [path for path in sorted((ROOT / "scripts" / "launch").iterdir()) if path.suffix != ".md"]
    return found_in((path, re.findall(r"\$\{?((?:SLURM_[A-Z_0-9]+)|[A-Z][A-Z_0-9]+(?=:-))", path.read_text()))
                    for path in [*paths, ROOT / "scripts" / "quickstart.sh"])


def exit_statuses():
    path = ROOT / "include" / "mica" / "core" / "error.hpp"
    codes = re.search(r"enum class ExitCode.*?\};", path.read_text(), re.S).group(0)
    return found_in([(path, re.findall(r"^\s+\w+ = (\d+),", codes, re.M))])


def shard_datasets():
    return found_in((path, re.findall(r'"(/(?:pieces|unit_table)/\w+)"', text)) for path, text in sources("src/checkpoint"))


def events():
    return found_in((path, re.findall(r'\{"event", "(\w+)"\}', text)) for path, text in sources("src/train"))


def check():
    variables = {**variables_of_scripts(), **variables_of_programs()}
    document_events = set(re.findall(r"^### (\w+)$", DOCUMENT.read_text().split("## metrics.jsonl")[1].split("\n## ")[0], re.M))
    shards = {name for name in rows_below("### Shard files") if "<" not in name}  # those with a fixed name
    tables = (("the variable", set(rows_below("## Environment variables")), variables),
              ("the exit status", set(rows_below("## Exit statuses")), exit_statuses()),
              ("the dataset", shards, shard_datasets()),
              ("the event", document_events, events()))
    errors = []
    for what, in_document, in_sources in tables:
        errors += compare(what, in_document, in_sources)
        if not in_sources:
            errors.append(f"{what}: none was found in the sources; the check needs to be mended")
    return errors, f"{sum(len(t[1]) for t in tables)} names in files.md"
