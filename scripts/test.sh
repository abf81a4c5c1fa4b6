#!/usr/bin/env bash
# Builds and runs Mica's tests.
#   scripts/test.sh                the default suite: what CI runs, there followed by short fuzzing and the build for GPUs
#   scripts/test.sh --sanitizers   unit tests and a training on 2 ranks under address+undefined and thread sanitizers
#   scripts/test.sh --fuzz [SEC]   what Mica parses, fed with broken input for SEC seconds each (default 60); CI: 10
#   scripts/test.sh --soak         full counts of the randomised tests (hours)
#   scripts/test.sh --nightly      breaks Mica in hundreds of small ways, and fails when the tests do not notice (an hour or two;
#                                  scripts/mutate.py, tests/mutations)
#   scripts/test.sh -R NAME ...    further arguments go to ctest
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
source scripts/environment.sh
jobs=$(nproc)
flags=(-DMICA_BUILD_TESTS=ON)
[[ "${CI:-}" == "true" ]] && flags+=(-DMICA_WERROR=ON)

# Unit tests, then three steps of the quickstart's model on 2 ranks, under each sanitizer.
sanitizers() {
  local text=/usr/share/common-licenses/GPL-3 out
  out=$(mktemp -d)
  # shellcheck disable=SC2064  # now: the trap outlives the local variable
  trap "rm -rf '$out'" EXIT
  export OMP_NUM_THREADS=1   # gcc's OpenMP runtime makes false reports otherwise
  # Open MPI's own libraries are not instrumented, and keep memory until the process ends.
  export ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS="ignore_noninstrumented_modules=1 halt_on_error=1"
  for preset in debug tsan; do
    echo "== $preset: build"
    cmake --preset "$preset" --log-level=WARNING "${flags[@]}"
    cmake --build --preset "$preset" --parallel "$jobs"
    echo "== $preset: unit tests"
    (cd "build/$preset" && ctest --output-on-failure --parallel "$jobs" -L unit)
    echo "== $preset: a training on 2 ranks"
    "build/$preset/bin/mica-tokenize" --quiet --out="$out/$preset.h5" "$text"
    mpirun -np 2 "build/$preset/bin/mica-train" configs/gpt2-tiny-text.cfg "--run.dir=$out/$preset" \
      "--data.train=$out/$preset.train.h5" "--data.val=$out/$preset.val.h5" --train.steps=3 --train.micro_batch=2 \
      --mesh.streams=threaded --optim.warmup_steps=1
  done
}

# Every fuzzer for so many seconds, from the corpus in the tree; what it found before lies in build/fuzz/corpus.
fuzz() {
  local seconds=$1 fuzzer name
  if ! scripts/install-packages.sh --fuzz; then
    echo "== fuzzing: SKIPPED, since clang-16 cannot be installed here" >&2
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

# The programs and the tests for GPUs, where nvcc is: compiled and linked, since no GPU is here to run them, but for what
# asks CUDA's libraries without one (label cuda).
cuda() {
  if ! command -v nvcc >/dev/null && [[ ! -x /usr/local/cuda/bin/nvcc ]]; then
    echo "== the build for GPUs: left out, nvcc is not here"
    return
  fi
  echo "== the build for GPUs"
  scripts/cudnn-frontend.sh
  cmake --preset cuda --log-level=WARNING "${flags[@]}"
  cmake --build --preset cuda --parallel "$jobs" --target apps/all gpu_tests
  (cd build/cuda && ctest --output-on-failure -L cuda)
  if [[ ! -e /dev/nvidia0 ]]; then   # the same program without a GPU: one clear message
    local said status=0
    said=$(build/cuda/bin/mica-train configs/gpt2-tiny-text.cfg --mesh.device=cuda 2>&1) || status=$?
    [[ $status -eq 2 && "$said" == *"no GPU can be used"*"cudaError"* ]] || { echo "without a GPU: status $status, $said" >&2; return 1; }
  fi
}

scripts/install-packages.sh --tests
scripts/check_includes.py
scripts/check_parity_list.py
scripts/check_docs.py
scripts/check_citations.py
case "${1:-}" in
  --sanitizers) sanitizers; exit ;;
  --fuzz) fuzz "${2:-60}"; exit ;;
  --nightly) scripts/reference-venv.sh; scripts/mutate.py; exit ;;
  --soak) shift; labels=(-L soak) ;;
  *) labels=(-LE 'soak|gpu') ;;
esac
scripts/reference-venv.sh
cmake --preset release --log-level=WARNING "$mica_gpu_flag" "${flags[@]}"
cmake --build --preset release --parallel "$jobs"
(cd build/release && ctest --output-on-failure --parallel "$jobs" "${labels[@]}" "$@")
if [[ "${CI:-}" == "true" && $# -eq 0 ]]; then
  cuda
  fuzz 10
fi
