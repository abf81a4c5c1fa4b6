#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks Mica in small ways, one at a time, and says which breakages no test notices.

tests/mutations/*.toml list the breakages: file, text, what stands there instead, and the tests that must fail. All of them
are built at once into a copy of the tree, each behind its number in MICA_MUTANT; then, for each, its tests run in fresh
processes with that number set. They have to pass with no number set, and to fail with it. tests/mutations/README.md tells
how to write one and what to do with a survivor.

  scripts/mutate.py                        builds, tries every breakage, prints what survived
  scripts/mutate.py --only 1301 1305-1320  these only; --only train: those of tests/mutations/train.toml
  scripts/mutate.py --list                 what would be tried
  scripts/mutate.py --check                is every listed text still in its file, every test's executable there? (no build)

Exit status: 0 when at least 97 % were noticed and each survivor is explained in the list (`survives`); 1 otherwise; 2 when
the list is wrong, the build fails, or a test fails without a breakage.
"""
import argparse
import concurrent.futures
import dataclasses
import functools
import json
import os
import pathlib
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
LISTS = ROOT / "tests" / "mutations"
FIELDS = {"file", "text", "with", "test", "why", "after", "survives", "needs"}
LEAST_NOTICED = 0.97
# Defined once, in a file that every program links; declared where a breakage needs it.
SWITCH_FILE = "src/core/error.cpp"
SWITCH = """
#include <cstdlib>
namespace mica {
bool mutant(int number) noexcept {
  static const int on = [] {
    const char* text = std::getenv("MICA_MUTANT");
    return text == nullptr ? 0 : std::atoi(text);
  }();
  return number == on;
}
}
"""
DECLARATION = "namespace mica { bool mutant(int) noexcept; }\n#line 1\n"
# Each breakage of a shell script is a copy beside it, which this line behind the script's first one runs instead.
SCRIPT_SWITCH = ('[[ "${{MICA_MUTANT:-}}" != {0} ]] || {{ [[ "$0" != "${{BASH_SOURCE[0]}}" ]] || exec bash "$0.{0}" "$@"; '
                 'source "${{BASH_SOURCE[0]}}.{0}"; return; }}\n')
# `const int n = 1;`, `Message start = event_at(0);`, not `return f(0);`.
DECLARES = re.compile(r"\s*(?!return\b|throw\b|delete\b|else\b)((const|auto|constexpr|static)\b|[A-Za-z_][\w:<>]*[&*]?\s+[a-z_]\w*\s*[=({])")


class ListError(Exception):
    """Something to mend in the list."""


@functools.cache
def any_layout(text):
    """Matches the text however a formatter breaks its lines: only a blank between two words, or at an end, has to be there."""
    words = r"\s+".join(r"\s*".join(map(re.escape, re.findall(r"\w+|[^\w\s]", part))) for part in re.split(r"(?<=\w)\s+(?=\w)", text))
    return re.compile((r"(?<=\s)" if text[0].isspace() else "") + words + (r"(?=\s)" if text[-1].isspace() else ""))


@dataclasses.dataclass
class Mutation:
    number: int
    room: str  # the list's name
    file: str
    text: str
    replacement: str
    tests: list
    why: str
    after: str
    survives: str  # why no test can notice it; empty for most
    needs: str     # a flag of /proc/cpuinfo, without which the code does not run; empty for most
    begin: int = 0
    end: int = 0

    def find(self, source):
        """Sets begin and end: the only place of the text, or the first one behind `after`, which has only one."""
        start = 0
        if self.after:
            places = list(any_layout(self.after).finditer(source))
            if len(places) != 1:
                raise ListError(f"{self}: `after` is {len(places)} times in {self.file}, expected once: {self.after!r}")
            start = places[0].end()
        places = list(any_layout(self.text).finditer(source, start))
        if not self.after and len(places) != 1:
            raise ListError(f"{self}: the text is {len(places)} times in {self.file}, expected once (`after` says which is meant; a "
                            f"breakage whose code is gone is deleted or moved): {self.text!r}")
        if not places:
            raise ListError(f"{self}: the text is not behind `after` in {self.file}: {self.text!r}")
        self.begin, self.end = places[0].span()
        if source[:self.begin].endswith((".", "->", "::")):
            raise ListError(f"{self}: {self.text!r} begins inside a name; take the whole of it, or one argument")

    def check(self):
        """What would not compile behind a switch: half of a block, a comment, a list of arguments inside (a ? b : c)."""
        for text in (self.text, self.replacement):
            depth = 0
            for c in text:
                depth += (c in "([{") - (c in ")]}")
                if depth < 0 or (depth == 0 and c == "," and not self.is_statement()):
                    raise ListError(f"{self}: {text!r} is no expression: take one argument, or the whole call")
            if depth != 0:
                raise ListError(f"{self}: a bracket of {text!r} is not closed in it")
            if not self.is_statement() and (re.match(r"(if|for|while|return|catch|else)\b", text) or
                                            text.count("?") != text.replace("::", "").count(":")):
                raise ListError(f"{self}: {text!r} is no expression: take the condition alone, or the whole of a ? b : c")
            if self.is_statement() and text.count(";") == 1 and DECLARES.match(text):
                raise ListError(f"{self}: {text!r} declares a name, which would end with the switch; take its value alone")
            if re.match(r"\s*(\.[A-Za-z_]|->)", text):
                raise ListError(f"{self}: {text!r} begins inside an expression; take the object, too")
            if not self.is_statement() and (re.match(r"\s*(&&|[|<>=+/%^?,]|[-&:*] )", text) or re.search(r"([&|<>=*/%^?:,!]|[^+]\+|[^-]-)\s*$", text)):
                raise ListError(f"{self}: {text!r} begins or ends with an operator; take both of its sides")
            if "//" in text:
                raise ListError(f"{self}: {text!r} holds a comment, which would hide the switch's end; leave it out")

    def is_script(self):
        return self.file.endswith(".sh")

    def is_statement(self):
        return self.text.rstrip().endswith((";", "}"))

    def __str__(self):
        return f"{self.room}.toml {self.number}"


def read_lists():
    mutations = {}
    for path in sorted(LISTS.glob("*.toml")):
        try:
            entries = tomllib.loads(path.read_text())
        except tomllib.TOMLDecodeError as error:
            raise ListError(f"{path}: {error}") from error
        for key, entry in entries.items():
            place = f"{path.name} [{key}]"
            if not key.isdigit() or not isinstance(entry, dict):
                raise ListError(f"{place}: expected a number as the heading of each breakage")
            if int(key) in mutations:
                raise ListError(f"{place}: {mutations[int(key)]} has that number already")
            if missing := {"file", "text", "with", "test", "why"} - entry.keys():
                raise ListError(f"{place}: {', '.join(sorted(missing))} missing")
            if unknown := entry.keys() - FIELDS:
                raise ListError(f"{place}: unknown {', '.join(sorted(unknown))}; known are {', '.join(sorted(FIELDS))}")
            tests = entry["test"] if isinstance(entry["test"], list) else [entry["test"]]
            mutations[int(key)] = Mutation(int(key), path.stem, entry["file"], entry["text"].strip("\n"), entry["with"].strip("\n"),
                                           tests, entry["why"], entry.get("after", ""), entry.get("survives", ""), entry.get("needs", ""))
            if not mutations[int(key)].is_script():
                mutations[int(key)].check()
    return mutations


def with_switches(source, mutations):
    """The source with every breakage behind its number. Breakages may lie inside others, not across their borders."""
    for mutation in mutations:
        mutation.find(source)

    def render(begin, end, inside):
        text, at = "", begin
        while inside:
            outer = inside[0]
            span = [m for m in inside if (m.begin, m.end) == (outer.begin, outer.end)]
            within = [m for m in inside if m not in span and m.begin < outer.end]
            for m in within:
                if m.end > outer.end:
                    raise ListError(f"{m} begins inside of {outer} and ends behind it")
            inside = [m for m in inside if m.begin >= outer.end]
            original = render(outer.begin, outer.end, within)
            text += source[at:outer.begin]
            if outer.is_statement():
                text += "".join(f"if (::mica::mutant({m.number})) {{ {m.replacement} }} else " for m in span) + f"{{ {original} }}"
            else:
                text += "(" + "".join(f"::mica::mutant({m.number}) ? ({m.replacement}) : " for m in span) + f"({original}))"
            at = outer.end
        return text + source[at:end]

    return render(0, len(source), sorted(mutations, key=lambda m: (m.begin, -m.end, m.number)))


def write_broken_scripts(tree, source, mutations):
    """@returns the script with a switch for each breakage."""
    first, _, rest = source.partition("\n")
    for m in mutations:
        m.find(source)
        path = tree / f"{m.file}.{m.number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source[:m.begin] + m.replacement + source[m.end:])
    return first + "\n" + "".join(SCRIPT_SWITCH.format(m.number) for m in mutations) + rest


def by_file(mutations):
    """{file: its breakages}"""
    files = {}
    for mutation in mutations:
        files.setdefault(mutation.file, []).append(mutation)
    return files


def write_tree(tree, mutations):
    """A copy of the working tree with the switches. Only what has changed is written, so that little is built again."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True,
                           text=True).stdout.split("\n")
    names = [name for name in names if name and (ROOT / name).is_file()]
    broken = by_file(mutations)
    if unknown := broken.keys() - set(names):
        raise ListError(f"{broken[min(unknown)][0]}: there is no file {min(unknown)}")
    for name in names:
        content = (ROOT / name).read_bytes()
        if name in broken and broken[name][0].is_script():
            content = write_broken_scripts(tree, content.decode(), broken[name]).encode()
        elif name in broken:
            content = (DECLARATION + with_switches(content.decode(), broken[name])).encode()
        if name == SWITCH_FILE:
            content += SWITCH.encode()
        path = tree / name
        if path.is_file() and path.read_bytes() == content:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        shutil.copymode(ROOT / name, path)
    kept = set(names)
    for folder in ("src", "include", "apps", "tests"):
        for path in (tree / folder).rglob("*"):
            if path.is_file() and str(path.relative_to(tree)) not in kept:
                path.unlink()


def build(tree, targets, jobs):
    binary = tree / "build" / "release"
    if not (binary / "build.ninja").is_file():
        subprocess.run(["cmake", "--preset", "dev", "--log-level=WARNING"], cwd=tree, check=True)
    subprocess.run(["cmake", "--build", "--preset", "dev", "--parallel", str(jobs), "--target", *sorted(targets)], cwd=tree,
                   check=True)


@dataclasses.dataclass
class Command:
    """`test` of a breakage: [RANKS *] EXECUTABLE: GTEST_FILTER. RANKS is a number, or `cluster`: on the head of an emulated one."""
    ranks: str
    executable: str
    filter: str

    @staticmethod
    def parse(text):
        match = re.fullmatch(r"(?:([1-9]|cluster)\s*\*\s*)?(\w+):\s*(\S+)", text.strip())
        if not match:
            raise ListError(f"test = {text!r}: expected 'EXECUTABLE: FILTER', 'RANKS * EXECUTABLE: FILTER' or 'cluster * EXECUTABLE: FILTER'")
        return Command(match[1] or "", match[2], match[3])

    def arguments(self, tree):
        command = [str(tree / "build/release/tests" / self.executable), f"--gtest_filter={self.filter}"]
        if not self.ranks:
            return [*command, "--gtest_fail_fast"]
        if self.ranks == "cluster":
            return [str(tree / "scripts/cluster/cluster.sh"), "with", "--rate=200mbit", "--", *command, "--gtest_fail_fast"]
        return ["mpirun", "-np", self.ranks, *command, f"--expect-world={self.ranks}"]


def environment(tree, number, temporary):
    text = subprocess.run(["bash", "-c", "source scripts/environment.sh && env -0"], cwd=ROOT, check=True, capture_output=True).stdout
    variables = dict(item.split("=", 1) for item in text.decode().split("\0") if "=" in item)
    variables.update(OMP_NUM_THREADS="1", TMPDIR=str(temporary))
    variables.pop("MICA_MUTANT", None)
    if number:
        variables.update(MICA_MUTANT=str(number), OMPI_MCA_mca_base_env_list="MICA_MUTANT")  # on other nodes, too
    return variables


def kill_session(leader):
    """What a test has started may have process groups of its own, and outlive it where a breakage makes it hang."""
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:
                os.kill(int(stat.parent.name), signal.SIGKILL)
        except (OSError, ValueError):  # it has ended meanwhile
            pass


def run(text, tree, number, limit_s):
    """@returns passed, seconds, output. A process that hangs is killed with all that it started."""
    command = Command.parse(text)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mica-mutant-", ignore_cleanup_errors=True) as temporary, \
            tempfile.TemporaryFile() as output:
        child = subprocess.Popen(command.arguments(tree), cwd=tree / "build/release", stdout=output, stderr=subprocess.STDOUT,
                                 stdin=subprocess.DEVNULL, env=environment(tree, number, temporary), start_new_session=True)
        try:
            status = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = -1
        kill_session(child.pid)
        child.wait()
        output.seek(0)
        said = output.read().decode(errors="replace")
    if not number and status == 0 and re.search(r"Running 0 tests", said):
        status, said = 1, "the filter names no test\n" + said
    return status == 0, time.monotonic() - begin, said


def baseline(tests, tree, jobs):
    """Seconds of each test without a breakage. Ends the program when one fails."""
    seconds, failed = {}, []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for text, (passed, took, said) in zip(tests, pool.map(lambda text: run(text, tree, 0, 600), tests)):
            seconds[text] = took
            if not passed:
                failed.append(text)
                print(f"FAILS without a breakage: {text}\n{said[-20000:]}", flush=True)
    if failed:
        raise ListError(f"{len(failed)} of {len(tests)} tests fail without a breakage")
    return seconds


def try_one(mutation, tree, seconds):
    """The test that noticed it, or none."""
    for text in mutation.tests:
        passed, took, said = run(text, tree, mutation.number, 30 + 5 * seconds[text])
        if not passed:
            return {"noticed_by": text, "seconds": round(took, 2), "said": said[-1500:]}
    return {"noticed_by": None}


def check_executables(mutations):
    """Every test's executable is one that the build knows: unit_ROOM, cluster_FILE, or a word of a CMakeLists.txt."""
    known = {f"unit_{folder.name}" for folder in (ROOT / "tests" / "unit").iterdir()}
    known |= {f"cluster_{path.stem.removesuffix('_test')}" for path in (ROOT / "tests" / "cluster").glob("*_test.cpp")}
    for path in (ROOT / "tests").rglob("CMakeLists.txt"):
        known |= set(re.findall(r"\w+_\w+", path.read_text()))
    for m in mutations:
        for text in m.tests:
            executable = Command.parse(text).executable
            if executable not in known and not executable.startswith("unit_gpu_"):
                raise ListError(f"{m}: there is no test executable {executable}")


def processor_flags():
    line = re.search(r"^flags\s*:(.*)", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return set(line[1].split()) if line else set()


def chosen(mutations, only):
    if not only:
        return list(mutations.values())
    found = []
    for word in only:
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", word)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        those = [m for m in mutations.values() if (first <= m.number <= last if match else m.room == word)]
        if not those:
            raise ListError(f"--only {word}: no such breakage or list (scripts/mutate.py --list)")
        found += those
    return found


def report(results, tree):
    survivors = [(m, r) for m, r in results if not r["noticed_by"]]
    noticed = len(results) - len(survivors)
    unexplained = [m for m, _ in survivors if not m.survives]
    outdated = [m for m, r in results if r["noticed_by"] and m.survives]
    print()
    for m, _ in survivors:
        print(f"SURVIVED {m}: {m.why}\n  {m.file}: {m.text!r} -> {m.replacement!r}\n  " +
              (f"explained: {m.survives}" if m.survives else f"unnoticed by {', '.join(m.tests)}"))
    for m in outdated:
        print(f"noticed, though the list explains why it cannot be: {m}; delete its `survives`")
    by_room = {}
    for m, r in results:
        room = by_room.setdefault(m.room, [0, 0])
        room[0] += bool(r["noticed_by"])
        room[1] += 1
    for room, (some, all_of_it) in by_room.items():
        print(f"{room:12} {some} of {all_of_it} noticed")
    print(f"{noticed} of {len(results)} breakages were noticed ({100 * noticed / len(results):.1f} %), "
          f"{len(unexplained)} survivors without an explanation")
    path = tree.parent / "results.json"
    path.write_text(json.dumps({"noticed": noticed, "tried": len(results), "mutations": [
        {"number": m.number, "file": m.file, "why": m.why, "explained": m.survives, **{k: v for k, v in r.items() if k != "said"}}
        for m, r in results]}, indent=1) + "\n")
    print(f"each breakage: {path}")
    return noticed / len(results) >= LEAST_NOTICED and not unexplained and not outdated


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="N", help="numbers, ranges of numbers (1301-1310) or names of lists")
    parser.add_argument("--list", action="store_true", help="prints the breakages and stops")
    parser.add_argument("--check", action="store_true", help="looks up every text in its file and every executable, and stops")
    parser.add_argument("--build-only", action="store_true", help="stops before the first test")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="tests at a time, and compilers (default: the cores)")
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build" / "mutations",
                        help="holds the copy and its build, and is kept: the next run builds what has changed (default build/mutations)")
    parser.add_argument("--verbose", action="store_true", help="prints what the failing test said")
    options = parser.parse_args()
    mutations = read_lists()
    picked = chosen(mutations, options.only)
    if options.list:
        for m in picked:
            print(f"{m.number:5} {m.file}: {m.why}  [{', '.join(m.tests)}]")
        return 0
    if options.check:
        check_executables(picked)
        files = by_file(picked)
        for file, those in files.items():
            source = (ROOT / file).read_text()
            if those[0].is_script():
                for m in those:
                    m.find(source)
            else:
                with_switches(source, those)
        print(f"{len(picked)} breakages in {len(files)} files: every text and executable is in its place")
        return 0
    flags = processor_flags()
    for m in [m for m in picked if m.needs and m.needs not in flags]:
        print(f"left out, since this processor has no {m.needs}: {m}: {m.why}", flush=True)
        picked.remove(m)
    if not picked:
        return 0
    tests = sorted({text for m in picked for text in m.tests})
    targets = {Command.parse(text).executable for text in tests}
    tree = options.build_dir.resolve() / "tree"
    write_tree(tree, mutations.values())
    build(tree, targets, options.jobs)
    if options.build_only:
        return 0
    seconds = baseline(tests, tree, options.jobs)
    print(f"{len(tests)} tests pass without a breakage; trying {len(picked)} breakages", flush=True)
    results, done = [], queue.SimpleQueue()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for m in picked:
            pool.submit(lambda m=m: try_one(m, tree, seconds)).add_done_callback(lambda future, m=m: done.put((m, future)))
        for _ in picked:
            m, future = done.get()
            result = future.result()
            results.append((m, result))
            noticed = f"noticed in {result['seconds']} s" if result["noticed_by"] else "SURVIVED"
            print(f"{len(results):4}/{len(picked)} {m.number} {noticed}: {m.why}", flush=True)
            if options.verbose and result["noticed_by"]:
                print(result["said"])
    return 0 if report(sorted(results, key=lambda each: each[0].number), tree) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ListError, subprocess.CalledProcessError) as error:
        print(f"mutate.py: {error}", file=sys.stderr)
        sys.exit(2)
