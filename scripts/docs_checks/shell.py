# SPDX-License-Identifier: Apache-2.0
"""Commands as documents show them: cut into simple commands, and each held to the programs, flags, keys and files there are."""
import json
import os
import re
import shlex

from . import ROOT, config_keys

# Programs of others that documents may call. (A name that is not here and none of Mica's is taken for a typing mistake.)
FOREIGN = {
    # shell and text
    ".", "[", "[[", "bash", "cat", "cd", "command", "cp", "df", "diff", "echo", "env", "exit", "export", "false", "find", "findmnt",
    "grep", "head", "hostname", "jq", "kill", "ldd", "ls", "lscpu", "mkdir", "mv", "nproc", "numactl", "printf", "ps", "pwd",
    "rm", "sed", "seq", "set", "sleep", "sort", "source", "split", "stat", "tail", "tar", "tee", "test", "trap", "true", "ulimit",
    "umask", "uname", "unset", "wait", "wc", "which", "xargs",
    # builds
    "ccache", "clang-format", "cmake", "compute-sanitizer", "cpack", "ctest", "dpkg", "git", "ninja", "nsys", "nvcc",
    "nvidia-smi",
    # packages
    "apptainer", "apt", "apt-get", "conda", "docker", "mamba", "micromamba", "module", "pip", "python", "python3", "singularity", "spack",
    "sudo",
    # HDF5
    "h5dump", "h5ls", "h5repack",
    # launchers and schedulers
    "lfs", "mpicc", "mpiexec", "mpirun", "nohup", "ompi_info", "sacct", "salloc", "sbatch", "scancel", "scontrol", "sinfo",
    "squeue", "srun", "ssh",
}
KEYWORDS = {"if", "then", "elif", "else", "fi", "do", "done", "while", "until", "{", "}", "!", "time", "&"}
LAUNCHERS = {"mpirun", "mpiexec", "srun", "env", "nohup", "time", "numactl", "apptainer", "singularity", "bash"}
# Which sources tell the flags of a program.
PROGRAMS = {
    "mica-train": ("src/train/run_training.cpp",),
    "mica-tokenize": ("apps/mica_tokenize.cpp",),
    "mica-inspect": ("src/checkpoint/inspect.cpp",),
    "mica-report": ("src/report/run_report.cpp",),
    "mica-convert": ("src/checkpoint/convert/run_convert.cpp", "src/checkpoint/convert/hf_commands.cpp",
                     "src/checkpoint/convert/checkpoint_commands.cpp"),
    "mica-generate": ("src/generate/program/command.cpp",),
    "mica-plan": ("src/train/planner/plan_command.cpp",),
    "mica-bench": ("src/train/bench/*.cpp",),
}
SUBCOMMANDS = {"mica-convert": "has no subcommand", "mica-bench": "has no benchmark"}
EVERYWHERE = {"help", "version"}
WITH_KEYS = {"mica-train", "mica-plan", "mica-bench"}  # of the config, as flags
PLACEHOLDER = re.compile(r"[A-Z_]{2,}|\.\.\.|<|>|\[|\]|\*")


def sources_of(program):
    return "\n".join(path.read_text() for pattern in PROGRAMS[program] for path in sorted(ROOT.glob(pattern)))


def program_of(word):
    """mica-train of $bin/mica-train or build/release/bin/mica-train; None."""
    name = word.rsplit("/", 1)[-1]
    return name if name in PROGRAMS else None


def simple_commands(text):
    """Lists of words; bodies of here-documents are left out."""
    text = re.sub(r"\\\n", " ", text)
    kept, end = [], None
    for line in text.splitlines():
        if end is not None:
            end = None if line.strip() == end else end
            continue
        kept.append(line)
        if here := re.search(r"<<-?\s*['\"]?(\w+)['\"]?", line):
            end = here.group(1)
    commands, words = [], []
    for line in kept:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();|&<>")
        lexer.whitespace_split = True
        for token in [*lexer, ";"]:
            if token and set(token) <= set(";|&()"):
                commands.append(words)
                words = []
            else:
                words.append(token)
    return [without_redirections(each) for each in commands if each]


def without_redirections(words):
    kept, skips = [], False
    for word in words:
        if skips:
            skips = False
        elif word and set(word) <= set("<>&"):
            skips = True
            if kept and kept[-1] in ("1", "2"):
                kept.pop()
        else:
            kept.append(word)
    return kept


def looks_like_commands(text):
    """Whether a block without a language is of commands."""
    for line in text.splitlines():
        word = line.split(" ")[0]
        if word in FOREIGN - {"test", "env", "time", "["} or program_of(word) or re.match(r"(\./)?scripts/[\w/-]+\.(sh|py)$", word):
            return True
    return False


class Checker:
    def __init__(self):
        self.keys = config_keys()
        self.flags = {program: sources_of(program) for program in PROGRAMS}
        self.presets = {preset["name"] for preset in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]}
        cmake_files = [path for pattern in ("CMakeLists.txt", "scripts/cmake/*", "apps/CMakeLists.txt", "src/**/CMakeLists.txt",
                                            "tests/**/CMakeLists.txt") for path in sorted(ROOT.glob(pattern))]
        self.cmake = "\n".join(path.read_text() for path in cmake_files if path.is_file())
        self.seen = 0
        self.is_prose = False

    def errors_of(self, text, is_prose=False):
        """Of a block of commands. @param is_prose  of one that a text names, perhaps without calling it."""
        self.is_prose = is_prose
        try:
            commands = simple_commands(text)
        except ValueError as error:
            return [f"not understood as shell: {error}"]
        return [error for words in commands for error in self.errors_of_command(words)]

    def errors_of_command(self, words):
        while words and (words[0] in KEYWORDS or re.fullmatch(r"\w+=.*", words[0])):
            words = words[1:]
        if not words or words[0] in ("for", "case", "function") or (words[0].startswith("$") and program_of(words[0]) is None):
            return []
        self.seen += 1
        word, rest = words[0], words[1:]
        errors = self.errors_of_files(words)
        if program_of(word):
            return errors + self.errors_of_program(program_of(word), rest)
        if re.match(r"(\./)?scripts/", word):
            return errors + self.errors_of_script(word, rest, runs=True)
        if word in ("source", ".", "python3", "python") or word.endswith("/python"):
            is_script = rest and rest[0].startswith("scripts/")
            return errors + (self.errors_of_script(rest[0], rest[1:], runs=False) if is_script else [])
        if word == "sbatch":
            scripts = [i for i, each in enumerate(rest) if each.startswith("scripts/")]
            return errors + (self.errors_of_script(rest[scripts[0]], rest[scripts[0] + 1:], runs=False) if scripts else [])
        if word == "cmake":
            errors += self.errors_of_cmake(rest)
        if word in LAUNCHERS:
            inner = next((i for i, each in enumerate(rest) if program_of(each) or each.startswith("scripts/")), None)
            return errors + (self.errors_of_command(rest[inner:]) if inner is not None else [])
        if word not in FOREIGN and ("/" not in word or "/mica-" in word):
            errors.append(f"no program {word}: a typing mistake, or one that scripts/docs_checks/shell.py does not know")
        return errors

    def errors_of_files(self, words):
        return [f"no file {word}" for word in words
                if re.fullmatch(r"(configs|scripts|docs|src|include|tests)/[\w./-]+", word) and not (ROOT / word).exists()]

    def errors_of_keys(self, words):
        errors = []
        for word in words:
            match = re.match(r"--(\w+\.\w+)", word)
            if match and match.group(1) not in self.keys and match.group(1) != "section.key":
                errors.append(f"no config key {match.group(1)}")
        return errors

    def errors_of_program(self, program, words):
        flags = [re.match(r"--([\w-]+)(?![\w.-])", word) for word in words]
        names = {flag.group(1) for flag in flags if flag} - EVERYWHERE
        text = self.flags[program]
        errors = [f"{program} has no flag --{name}" for name in sorted(names)
                  if not re.search(rf'--{name}\b|"{name}(,\w)?"', text)]
        if program in SUBCOMMANDS and words and not words[0].startswith("-") and not PLACEHOLDER.search(words[0]):
            if f'"{words[0]}"' not in text:
                errors.append(f"{program} {SUBCOMMANDS[program]} {words[0]}")
        return errors + (self.errors_of_keys(words) if program in WITH_KEYS else [])

    def errors_of_script(self, script, words, runs):
        path = ROOT / script.removeprefix("./")
        if script.endswith("/") and path.is_dir():
            return []
        if not path.is_file():
            return [f"no script {script}"]
        errors = [f"{script} cannot be executed"] if runs and not self.is_prose and not os.access(path, os.X_OK) else []
        text = path.read_text()
        for word in words:
            flag = re.match(r"--([\w-]+)(?![\w.-])", word)
            if flag and flag.group(1) not in EVERYWHERE and f"--{flag.group(1)}" not in text:
                errors.append(f"{script} has no flag --{flag.group(1)}")
        return errors + self.errors_of_keys(words)

    def errors_of_cmake(self, words):
        errors = []
        for flag, value in zip(words, words[1:]):
            if flag == "--preset" and value not in self.presets:
                errors.append(f"no preset {value}")
            if flag == "--target" and not PLACEHOLDER.search(value) and not re.search(rf"\b{re.escape(value)}\b", self.cmake):
                errors.append(f"no target {value}")
        for word in words:
            option = re.match(r"-D(MICA_\w+)", word)
            if option and not re.search(rf"\b{option.group(1)}\b", self.cmake):
                errors.append(f"no option {option.group(1)} of CMake")
        return errors
