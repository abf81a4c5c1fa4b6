#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs Mica's tests.
#   scripts/test.sh                the default suite; CI runs it with the next two kinds, and then short fuzzing and the build for GPUs
#   scripts/test.sh --extended     jobs under Slurm, six ranks, installed trees, the documents' commands, mica-bench
#   scripts/test.sh --emulated-gpu tests of the GPU code on an emulated GPU
#   scripts/test.sh -R NAME ...    arguments go to ctest
#   scripts/test.sh --sanitizers [PRESET]  unit tests and a training on 2 ranks under address+undefined (preset debug) and thread
#                                  sanitizers (tsan), or under one of them
#   scripts/test.sh --mpich        tests under mpirun and a training on 2 ranks with Debian's MPICH
#   scripts/test.sh --fuzz [SEC]   each fuzzer of Mica's parsers for SEC seconds (default 60); CI: 10
#   scripts/test.sh --soak [PERCENT]  full counts of the randomised tests (hours), or that percentage
#   scripts/test.sh --mutations    breaks Mica in hundreds of small ways, and fails when the tests do not notice (an hour or two;
#                                  scripts/mutate.py, tests/mutations)
#   scripts/test.sh --nightly      --sanitizers, --mpich and --soak 10, with the time of each
# In CI (CI=true) it is a failure if something cannot be tested; MICA_CI_WITHOUT="cuda fuzz ..." names exceptions.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
source scripts/environment.sh
jobs=$(scripts/build-jobs.sh)
flags=()
emulate_cuda=OFF
[[ "${CI:-}" != "true" ]] || { flags+=(-DMICA_WERROR=ON); emulate_cuda=ON; }
work=$(mktemp -d)
times=()

finish() {
  rm -rf "$work"
  [[ ${#times[@]} -eq 0 ]] || printf '== %s\n' "${times[@]}"
}
trap finish EXIT

# stage NAME COMMAND...: runs it and prints its name and time.
stage() {
  local begin=$SECONDS
  echo "== $1"
  "${@:2}"
  times+=("$1: $((SECONDS - begin)) s")
}

# left_out NAME REASON: fails in CI unless MICA_CI_WITHOUT names it.
left_out() {
  echo "== $1: LEFT OUT, $2" >&2
  [[ "${CI:-}" != "true" || " ${MICA_CI_WITHOUT:-} " == *" $1 "* ]]
}

# build PRESET [cmake --build arguments]: including the tests, which the presets for users leave out.
build() {
  local emulate=OFF
  [[ "$1" != dev && "$1" != mpich ]] || emulate=$emulate_cuda
  cmake --preset "$1" --log-level=WARNING -DMICA_BUILD_TESTS=ON "-DMICA_EMULATE_CUDA=$emulate" "${flags[@]}"
  cmake --build --preset "$1" --parallel "$jobs" "${@:2}"
}

# run_tests FOLDER ctest-arguments...: also prints the longest tests and those that were not registered. Tests' PROCESSORS are
# in quarters of a core (scripts/cmake/MicaTest.cmake).
run_tests() {
  local folder=$1 status=0 name reason
  (cd "$folder" && ctest --output-on-failure --no-tests=error --parallel $((4 * jobs)) --output-junit durations.xml "${@:2}") || status=$?
  scripts/longest_tests.py "$folder/durations.xml"
  while read -r name reason; do left_out "$name" "$reason"; done <"$folder/tests_left_out.txt"
  return "$status"
}

# train_briefly PRESET MPIRUN: three steps of the quickstart's model on 2 ranks.
train_briefly() {
  local bin=build/$1/bin out=$work/$1
  "$bin/mica-tokenize" --quiet --out="$out.h5" /usr/share/common-licenses/GPL-3
  "$2" -np 2 "$bin/mica-train" configs/gpt2-tiny-text.cfg "--run.dir=$out" "--data.train=$out.train.h5" "--data.val=$out.val.h5" \
    --train.steps=3 --train.micro_batch=2 --mesh.streams=threaded --optim.warmup_steps=1
}

# sanitizers [PRESET]: debug, tsan, or both.
sanitizers() {
  local preset
  export OMP_NUM_THREADS=1   # gcc's OpenMP runtime makes false reports otherwise
  # Open MPI's libraries are not instrumented, and free some memory only at process exit.
  export ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS="ignore_noninstrumented_modules=1 halt_on_error=1"
  for preset in ${1:-debug tsan}; do
    stage "$preset: build" build "$preset" --target unit_tests mica-train mica-tokenize
    stage "$preset: unit tests" run_tests "build/$preset" -L unit
    stage "$preset: a training on 2 ranks" train_briefly "$preset" mpirun
  done
}

mpich() {
  scripts/install-packages.sh --mpich
  export OMP_NUM_THREADS=1
  stage "mpich: build" build mpich
  stage "mpich: tests under mpirun" run_tests build/mpich -L mpi -LE 'unit|soak|gpu'
  stage "mpich: a training on 2 ranks" train_briefly mpich mpiexec.mpich
}

# Runs every fuzzer for that many seconds, from the corpus in the tree; earlier findings are in build/fuzz/corpus.
fuzz() {
  local seconds=$1 fuzzer name
  if ! scripts/install-packages.sh --fuzz; then
    left_out fuzz "clang-16 cannot be installed here"
    return
  fi
  cmake --preset fuzz --log-level=WARNING
  cmake --build --preset fuzz --parallel "$jobs"
  for fuzzer in build/fuzz/bin/fuzz_*; do
    name=${fuzzer##*/fuzz_}
    mkdir -p "build/fuzz/corpus/$name"
    echo "== fuzzing $name for $seconds s"
    "$fuzzer" "-max_total_time=$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=20000 -verbosity=0 -print_final_stats=1 \
      "-artifact_prefix=build/fuzz/$name-" "build/fuzz/corpus/$name" "tests/fuzz/corpus/$name"
  done
}

# If there is nvcc: compiles and links the programs and tests for GPUs. Runs only tests that use CUDA's libraries without a GPU (label
# cuda).
cuda() {
  if ! command -v nvcc >/dev/null && [[ ! -x /usr/local/cuda/bin/nvcc ]]; then
    left_out cuda "nvcc is not here"
    return
  fi
  scripts/cudnn-frontend.sh
  build cuda --target apps/all gpu_tests
  run_tests build/cuda -L cuda
  if [[ ! -e /dev/nvidia0 ]]; then   # the same program without a GPU: one clear message
    local said status=0
    said=$(build/cuda/bin/mica-train configs/gpt2-tiny-text.cfg --mesh.device=cuda 2>&1) || status=$?
    [[ $status -eq 2 && "$said" == *"no GPU can be used"*"cudaError"* ]] || { echo "without a GPU: status $status, $said" >&2; return 1; }
  fi
}

# Runs all of them, even if one fails.
nightly() {
  local what begin failed=()
  for what in "--sanitizers debug" "--sanitizers tsan" --mpich "--soak 10"; do
    begin=$SECONDS
    # shellcheck disable=SC2086  # a flag and its value
    scripts/test.sh $what || failed+=("$what")
    times+=("nightly: $what: $((SECONDS - begin)) s")
  done
  [[ ${#failed[@]} -eq 0 ]] || { echo "nightly: FAILED: ${failed[*]}" >&2; return 1; }
}

if [[ "${1:-}" == "--nightly" ]]; then
  nightly
  exit
fi
scripts/install-packages.sh --tests
scripts/install-packages.sh --cluster
scripts/check_includes.py
scripts/check_parity_list.py
scripts/check_docs.py
scripts/check_citations.py
scripts/check_packaging.py
scripts/mutate.py --check
scripts/check_format.sh
scripts/reference-venv.sh
case "${1:-}" in
  --emulated-gpu) emulate_cuda=ON; stage build build dev; stage "tests on an emulated GPU" run_tests build/release -L emulated; exit ;;
  --sanitizers) sanitizers "${2:-}"; exit ;;
  --mpich) emulate_cuda=ON; mpich; exit ;;
  --fuzz) stage fuzzing fuzz "${2:-60}"; exit ;;
  --mutations) stage mutations scripts/mutate.py; exit ;;
esac
labels=(-LE 'soak|gpu')
whole=false   # what runs without arguments
if [[ "${1:-}" == "--soak" ]]; then
  labels=(-L soak)
  shift
  if [[ "${1:-}" =~ ^[0-9]+$ ]]; then
    export MICA_SOAK_PERCENT=$1
    shift
  fi
elif [[ "${1:-}" == "--extended" ]]; then
  labels=(-L extended)
  shift
elif [[ $# -eq 0 ]]; then
  whole=true
  [[ "${CI:-}" == "true" ]] || labels=(-LE 'soak|gpu|extended')
fi
stage build build dev
if $whole; then stage clang-tidy scripts/check_tidy.sh; fi
stage tests run_tests build/release "${labels[@]}" "$@"
if $whole; then
  if [[ "${CI:-}" == "true" ]]; then
    stage "the build for GPUs" cuda
    stage fuzzing fuzz 10
  else
    echo "== left to CI: scripts/test.sh --extended, --emulated-gpu and --fuzz, and the build for GPUs"
  fi
fi
