#!/usr/bin/env bash
# Builds and runs Mica's tests.
#   scripts/test.sh                the default suite: what CI runs
#   scripts/test.sh --sanitizers   unit tests and a training on 2 ranks under address+undefined and thread sanitizers
#   scripts/test.sh --soak         full counts of the randomised tests (hours)
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
  trap 'rm -rf "$out"' EXIT
  export OMP_NUM_THREADS=1   # gcc's OpenMP runtime makes false reports otherwise
  # Open MPI's own libraries are not instrumented, and keep memory until the process ends.
  export ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS="ignore_noninstrumented_modules=1 halt_on_error=1"
  for preset in debug tsan; do
    echo "== $preset: build"
    cmake --preset "$preset" --log-level=WARNING "${flags[@]}"
    cmake --build --preset "$preset" --parallel "$jobs"
    echo "== $preset: unit tests"
    (cd "build/$preset" && ctest --output-on-failure --timeout 900 -L unit)
    echo "== $preset: a training on 2 ranks"
    "build/$preset/bin/mica-tokenize" --quiet --out="$out/$preset.h5" "$text"
    mpirun -np 2 "build/$preset/bin/mica-train" configs/gpt2-tiny-text.cfg "--run.dir=$out/$preset" \
      "--data.train=$out/$preset.train.h5" "--data.val=$out/$preset.val.h5" --train.steps=3 --train.micro_batch=2 \
      --mesh.streams=threaded --optim.warmup_steps=1
  done
}

scripts/install-packages.sh --tests
scripts/check_includes.py
scripts/check_parity_list.py
scripts/check_docs.py
case "${1:-}" in
  --sanitizers) sanitizers; exit ;;
  --soak) shift; labels=(-L soak) ;;
  *) labels=(-LE 'soak|gpu') ;;
esac
scripts/reference-venv.sh
cmake --preset release --log-level=WARNING "${flags[@]}"
cmake --build --preset release --parallel "$jobs"
cd build/release
ctest --output-on-failure --timeout 300 "${labels[@]}" "$@"
