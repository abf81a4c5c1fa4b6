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

sanitizers() {
  for preset in debug tsan; do
    echo "== $preset: build"
    cmake --preset "$preset" --log-level=WARNING "${flags[@]}"
    cmake --build --preset "$preset" --parallel "$jobs"
    echo "== $preset: unit tests and a training on 2 ranks"
    (cd "build/$preset" && OMP_NUM_THREADS=1 ctest --output-on-failure -L sanitizers)
  done
}

scripts/install-packages.sh --tests
scripts/check_includes.py
case "${1:-}" in
  --sanitizers) sanitizers; exit ;;
  --soak) shift; labels=(-L soak) ;;
  *) labels=(-LE 'soak|gpu') ;;
esac
cmake --preset release --log-level=WARNING "${flags[@]}"
cmake --build --preset release --parallel "$jobs"
cd build/release
ctest --output-on-failure --timeout 300 "${labels[@]}" "$@"
