# SPDX-License-Identifier: Apache-2.0
"""Runs the blocks of documents as a reader would: `scripts/check_docs.py --run build/release/bin`.

Each document has a folder of its own, in which its blocks run from top to bottom in one shell, as if it were the source folder:
build/release/bin, scripts/ and configs/ are there, and what a reader would bring: texts, token files, a Hugging Face folder. The
programs are the real ones; only the configs are smaller, so that all documents together take less than a minute.
A block that needs what is not here is left out and counted.
"""
import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from . import ROOT, name_of
from .blocks import blocks_of, executed_documents
from .session import run_session

LIMIT_S = 300  # for one document: far more than any takes
TOKENIZER = ROOT / "tests" / "reference" / "tokenizers" / "gpt2.tokenizer.json"
# In configs/*.cfg: sizes with which a step takes milliseconds.
SMALLER = {"layers": 1, "heads": 2, "kv_heads": 1, "width": 32, "intermediate_size": 64, "seq_len": 32, "micro_batch": 1,
           "global_batch": 0, "steps": 4, "warmup_steps": 1, "eval_interval": 2, "eval_batches": 1, "log_interval": 1, "interval": 2}


class Failure(Exception):
    """Something that keeps blocks from being run at all."""


def python_with_h5py():
    for python in (sys.executable, "/usr/bin/python3", str(ROOT / "build/reference-venv/bin/python")):
        if os.path.exists(python) and subprocess.run([python, "-c", "import h5py, numpy"], capture_output=True).returncode == 0:
            return python
    raise Failure("no Python here has h5py: scripts/install-packages.sh --tests installs Debian's python3-h5py")


def smaller(config):
    lines = []
    for line in config.splitlines():
        match = re.match(r"(\w+) = ", line)
        if match and match.group(1) in SMALLER:
            line = f"{match.group(1)} = {SMALLER[match.group(1)]}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def launch_environment():
    """This process's variables with what mpirun needs on one machine, and one thread a rank."""
    text = subprocess.run(["bash", "-c", "source scripts/environment.sh && env -0"], cwd=ROOT, check=True, capture_output=True).stdout
    variables = dict(item.split("=", 1) for item in text.decode().split("\0") if "=" in item)
    return {name: value for name, value in variables.items() if not name.startswith(("MICA_", "SLURM_"))} | {"OMP_NUM_THREADS": "1"}


def call(command, folder, environment):
    output, status = run_session(command, folder, environment, LIMIT_S)
    if status != 0:
        ended = f"still running after {LIMIT_S} s" if status is None else f"status {status}"
        raise Failure(f"{' '.join(map(str, command))}: {ended}\n{output}")
    return output


class Workshop:
    """The folder that each document gets a copy of."""

    def __init__(self, folder, programs, mpirun):
        self.folder, self.programs = folder / "source", programs.resolve()
        tools = folder / "tools"
        tools.mkdir()
        for name, path in (("mpirun", mpirun), ("mpiexec", mpirun), ("python3", python_with_h5py())):
            (tools / name).write_text(f'#!/bin/sh\nexec "{path}" "$@"\n')
            (tools / name).chmod(0o755)
        self.environment = launch_environment() | {"PATH": f"{tools}:{self.programs}:{os.environ['PATH']}"}
        version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, env=self.environment).stdout
        self.has = {"openmpi" if "Open MPI" in version or "OpenRTE" in version else "mpich"}
        self.make()

    def make(self):
        (self.folder / "build" / "release").mkdir(parents=True)
        (self.folder / "build" / "release" / "bin").symlink_to(self.programs)
        for name in ("scripts", "docs", "tests"):
            (self.folder / name).symlink_to(ROOT / name)
        (self.folder / "configs").mkdir()
        for path in sorted((ROOT / "configs").glob("*.cfg")):
            (self.folder / "configs" / path.name).write_text(smaller(path.read_text()))
        text = "\n\n".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
        (self.folder / "book.txt").write_text(text)
        (self.folder / "story.txt").write_text(text[:20000])
        self.mica("mica-tokenize", "--quiet", "--out=corpus.h5", "book.txt")
        self.make_gpt2()

    def mica(self, program, *arguments):
        return call([self.programs / program, *arguments], self.folder, self.environment)

    def make_gpt2(self):
        """A GPT-2 as transformers would have saved it, with a tokenizer, too small for anything but this."""
        vocabulary = self.folder / "vocabulary"
        vocabulary.mkdir()
        shutil.copy(TOKENIZER, vocabulary / "tokenizer.json")
        (vocabulary / "config.json").write_text("{}\n")
        said = self.mica("mica-tokenize", "--vocab=vocabulary/tokenizer.json", "--out=ids.h5", "--val-fraction=0", "story.txt")
        num_ids = re.search(r"model\.vocab_size=(\d+)", said).group(1)
        sizes = {"model.type": "gpt2", "model.layers": 1, "model.heads": 1, "model.width": 8, "model.vocab_size": num_ids, "model.context": 1024,
                 "train.seq_len": 8, "train.steps": 1, "data.train": "ids.train.h5", "run.dir": "made"}
        (self.folder / "made.cfg").write_text("")
        self.mica("mica-train", "made.cfg", *(f"--{key}={value}" for key, value in sizes.items()))
        self.mica("mica-convert", "hf-export", "made", "gpt2", "--quiet", "--tokenizer=vocabulary")
        for name in ("vocabulary", "made"):
            shutil.rmtree(self.folder / name)
        for name in ("ids.train.h5", "made.cfg"):
            (self.folder / name).unlink()

    def copy_for(self, path, blocks):
        """@returns the document's folder. Token files that it makes itself are not there before."""
        folder = self.folder.parent / name_of(path).replace("/", "-")
        shutil.copytree(self.folder, folder, symlinks=True)
        if any("--out=corpus.h5" in block.text for block in blocks):
            for file in folder.glob("corpus.*"):
                file.unlink()
        return folder


def script_of(blocks, folder):
    lines = ["set -e -o pipefail"]
    for number, block in enumerate(blocks):
        lines.append(f"echo '@@ {block.place}'")
        if block.language == "python":
            (folder / f".block-{number}.py").write_text(block.text)
            lines.append(f"python3 .block-{number}.py")
        else:
            lines.append(block.text)
    return "\n".join(lines) + "\necho '@@ end'\n"


def run_document(workshop, path, blocks):
    """@returns what went wrong, or ''."""
    folder = workshop.copy_for(path, blocks)
    script = folder / ".blocks.sh"
    script.write_text(script_of(blocks, folder))
    output, status = run_session(["bash", str(script)], folder, workshop.environment, LIMIT_S)
    last = re.findall(r"^@@ (.*)$", output, re.M)[-1:]
    if last == ["end"]:
        return ""
    place = last[0] if last else name_of(path)
    ended = f"is still running after {LIMIT_S} s" if status is None else f"ends with status {status}"
    return f"{place}: the block {ended}:\n{output.rpartition('@@ ' + place)[2].strip()[-4000:]}"


def run(programs, mpirun):
    """@returns the exit status of the check."""
    failures, left_out, num_run = [], collections.Counter(), 0
    with tempfile.TemporaryDirectory(prefix="mica-docs-") as folder:
        try:
            workshop = Workshop(pathlib.Path(folder), pathlib.Path(programs), mpirun)
        except Failure as failure:
            print("docs check:", failure)
            return 1
        for path in executed_documents():
            blocks = [block for block in blocks_of(path)[0] if block.language in ("sh", "python")]
            wanted = [block for block in blocks if not block.needs - workshop.has]
            left_out.update(need for block in blocks for need in block.needs - workshop.has)
            num_run += len(wanted)
            if not wanted:
                continue
            begin = time.monotonic()
            failure = run_document(workshop, path, wanted)
            print(f"docs check: {name_of(path)}: {len(wanted)} of {len(blocks)} blocks run in {time.monotonic() - begin:.1f} s"
                  f"{', FAILED' if failure else ''}", flush=True)
            failures += [failure] if failure else []
    for failure in failures:
        print("docs check:", failure)
    reasons = ", ".join(f"{count} need {need}" for need, count in sorted(left_out.items()))
    print(f"docs check: {num_run} blocks run, {len(failures)} documents failed; not run: {reasons or 'none'}")
    return 1 if failures or num_run == 0 else 0
