#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails where a recipe names other libraries, or other versions of them, than scripts/cmake/MicaDependencies.cmake and MicaCuda.cmake do.

Looked at: packaging/conda/environment.yml, packaging/spack/package.py, packaging/apptainer/mica.def, packaging/modulefiles/mica.lua,
scripts/install-packages.sh and the table in docs/install.md. The words after DEBIAN, CONDA, SPACK and LEAST of each mica_require()
are what the others must say. (docs/install.md tells what was checked of the recipes beyond that.) Also fails where a file names another
version of Mica than CMakeLists.txt does, and where package.py uses a name that it does not import: it is executed, with stand-ins for what
Spack's documentation says of spack.package and of the build systems' modules.
"""
import ast
import contextlib
import pathlib
import re
import sys
import types
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent
CMAKE = ROOT / "scripts" / "cmake"
VERSIONS = {"CHANGELOG.md": r"^## ([\d.]+)", "CITATION.cff": r"^version: (.*)", "packaging/spack/package.py": r'^    version\("(.*)"\)', "docs/install.md": r"mica@([\d.]+)"}


def requirements():
    """title -> {LEAST, DEBIAN, CONDA, SPACK, is_gpu}"""
    found = {}
    for name in ("MicaDependencies.cmake", "MicaCuda.cmake"):
        for call in re.findall(r'mica_require\("([^"]+)"(.*?)\)\n', (CMAKE / name).read_text(), re.S):
            words = dict(re.findall(r"\b(LEAST) ([\d.]+)", call[1]))
            words |= dict(re.findall(r'\b(DEBIAN|CONDA|SPACK) "([^"]+)"', call[1]))
            found[call[0]] = words | {"is_gpu": name == "MicaCuda.cmake"}
    return found


def conda_packages(text):
    """name -> the rest of its line"""
    listed = text.split("dependencies:")[1]
    return {match[1]: match[2] for match in re.finditer(r"^  - ([\w-]+)(.*)$", listed, re.M)}


def spack_packages(text):
    """name -> its whole spec; the arguments of depends_on(), wherever it stands."""
    specs = [node.args[0].value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "depends_on"]
    return {re.match(r"[\w-]+", spec)[0]: spec for spec in specs}


def choices(words):
    """'openmpi or mpich' -> both; 'boost +program_options' -> boost"""
    return [re.match(r"[\w-]+", word)[0] for word in re.split(r",? or |,? and ", words)]


SPACK_DIRECTIVES = ("build_system can_splice conditional conflicts depends_on extends license maintainers patch provides redistribute requires "
                    "resource variant version").split()


def spack_modules():
    """What package.py may import, as modules of stand-ins. generator() is of the build systems' modules, not of spack.package."""
    def module(name, **names):
        made = types.ModuleType(name)
        made.__dict__.update(names, __all__=list(names))
        return made

    def ignore(*_arguments, **_named):
        return None

    def directives(names):
        return dict.fromkeys(names, ignore)

    class CMakePackage:
        define = define_from_variant = ignore

    class CudaPackage:
        pass

    systems = "spack_repo.builtin.build_systems"
    return {
        "spack": module("spack"),
        "spack.package": module("spack.package", when=lambda _spec: contextlib.nullcontext(), **directives(SPACK_DIRECTIVES)),
        **{name: module(name) for name in ("spack_repo", "spack_repo.builtin", systems)},
        f"{systems}.cmake": module(f"{systems}.cmake", CMakePackage=CMakePackage, **directives(["generator"])),
        f"{systems}.cuda": module(f"{systems}.cuda", CudaPackage=CudaPackage),
    }


def execution_errors(path):
    """What goes wrong when Spack reads the package, and asks for CMake's arguments."""
    with mock.patch.dict(sys.modules, spack_modules()):
        names = {"__name__": "package"}
        try:
            exec(compile(path.read_text(), str(path), "exec"), names)
            package = names["Mica"]()
            package.spec = mock.MagicMock()
            package.cmake_args()
        except Exception as error:  # whatever the package does wrong
            return [f"packaging/spack/package.py cannot be executed: {type(error).__name__}: {error}"]
    return []


def main():
    errors = []
    needs = requirements()
    if len(needs) < 10:
        errors.append(f"only {len(needs)} calls of mica_require() were understood")
    conda = conda_packages((ROOT / "packaging/conda/environment.yml").read_text())
    spack = spack_packages((ROOT / "packaging/spack/package.py").read_text())
    debian = (ROOT / "scripts/install-packages.sh").read_text()
    install = (ROOT / "docs/install.md").read_text()
    for title, need in needs.items():
        least = need.get("LEAST", "")
        if title != "OpenMP":  # the compiler's
            names = ["mpi"] if title == "MPI" else choices(need["SPACK"])
            spec = next((spack[name] for name in names if name in spack), None)
            if spec is None:
                errors.append(f"packaging/spack/package.py depends on no {' or '.join(names)}")
            elif f"@{least}:" not in spec and least:
                errors.append(f"packaging/spack/package.py: {spec}, but CMake wants {least}")
        if not need["is_gpu"]:
            names = choices(need["CONDA"])
            rest = next((conda[name] for name in names if name in conda), None)
            if rest is None:
                errors.append(f"packaging/conda/environment.yml has no {' or '.join(names)}")
            elif least and rest and not rest.startswith("=*=") and f">={least}" not in rest:
                errors.append(f"packaging/conda/environment.yml: {names[0]}{rest}, but CMake wants {least}")
            names = re.findall(r"lib[\w.-]+-dev|[\w-]+3-dev|openmpi-bin", need["DEBIAN"].split(", or ")[0])
            errors += [f"scripts/install-packages.sh does not install {name}" for name in names if f" {name}" not in debian and f"({name}" not in debian and title != "OpenMP"]
        row = re.search(rf"^\| {re.escape(title)} \|(.*)$", install, re.M)
        if not row:
            errors.append(f"docs/install.md: no row for {title}")
        else:
            errors += [f"docs/install.md: the row of {title} lacks '{need[key]}'" for key in ("LEAST", "DEBIAN", "CONDA", "SPACK") if need.get(key, "") not in row[1]]
    known = {name for need in needs.values() for name in choices(need["SPACK"])} | {"mpi", "c", "cxx", "cmake"}
    errors += [f"packaging/spack/package.py: CMake looks for no {name}" for name in spack if name not in known]

    errors += execution_errors(ROOT / "packaging/spack/package.py")

    definition = (ROOT / "packaging/apptainer/mica.def").read_text()
    errors += [f"packaging/apptainer/mica.def: no section %{name}" for name in ("files", "post", "runscript", "test", "help") if f"\n%{name}" not in definition]
    if "install -y --no-install-recommends git" not in definition:
        errors.append("packaging/apptainer/mica.def installs no git, so its programs would not name their commit")
    for path in re.findall(r"(scripts/[\w./-]+)", definition):
        if not (ROOT / path).is_file():
            errors.append(f"packaging/apptainer/mica.def: there is no {path}")
    module = (ROOT / "packaging/modulefiles/mica.lua").read_text()
    errors += [f"packaging/modulefiles/mica.lua sets no {name}" for name in ("PATH", "MANPATH", "CMAKE_PREFIX_PATH", "MICA_BIN") if f'("{name}", ' not in module]

    version = re.search(r"^project\(mica VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]
    for path, pattern in VERSIONS.items():
        named = re.search(pattern, (ROOT / path).read_text(), re.M)
        if not named or named[1] != version:
            errors.append(f"{path} names version {named[1] if named else 'none'}, CMakeLists.txt {version}")
    for path in ("docs/install.md", "docs/library.md", "examples/classifier/CMakeLists.txt", "tests/consumer/CMakeLists.txt"):
        wanted = re.search(r"find_package\(mica ([\d.]+)", (ROOT / path).read_text())
        if not wanted or not version.startswith(wanted[1] + "."):
            errors.append(f"{path} looks for another version of mica than {version}")

    for error in errors:
        print("packaging check:", error)
    print(f"packaging check: {len(needs)} libraries, {len(errors)} contradictions")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
