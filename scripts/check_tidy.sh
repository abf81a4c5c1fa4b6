#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs clang-tidy (.clang-tidy) on changed files; warnings are failures.   scripts/check_tidy.sh [SINCE | FILE.cpp...]
# SINCE: a commit; default: the last one that the branch shares with origin's main branch, and ten commits ago in CI (CI=true) and
# without an origin.
# Commits in .git-blame-ignore-revs, which only change the format, are ignored. If there are more than MICA_TIDY_FILES files (default 20:
# about two minutes on two cores), those changed last are checked, the rest only counted.
# Each file is compiled alone, not as a part of a unity build, so that missing includes are found.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/any_owners_git.sh
source scripts/any_owners_git.sh
most=${MICA_TIDY_FILES:-20}
folder=build/tidy   # only configured, never built

# The .cpp files changed since a commit, latest first. A header stands for the .cpp files of the same name.
changed_since() {
  local commit name stem
  { git diff --name-only HEAD   # not committed yet
    git rev-list --no-merges "$1..HEAD" | { grep -vxFf .git-blame-ignore-revs || true; } | while read -r commit; do
      git diff-tree --no-commit-id --name-only -r "$commit"
    done
  } | while read -r name; do
    case "$name" in
      *.cpp) echo "$name" ;;
      *.hpp) stem=$(basename "$name" .hpp)
             git ls-files "*/$stem.cpp" "*/${stem}_test.cpp" ;;
    esac
  done | awk '!seen[$0]++'
}

if [[ "${1:-}" == *.cpp ]]; then
  candidates=$(printf '%s\n' "$@")
  most=$#
else
  leave_out_without_git "tidy check"
  since=${1:-}
  if [[ -z "$since" && "${CI:-}" != "true" ]]; then since=$(git merge-base HEAD origin/HEAD 2>/dev/null || true); fi
  since=${since:-HEAD~10}
  if ! git rev-parse --quiet --verify "$since^{commit}" >/dev/null; then
    [[ $# -eq 0 ]] || { echo "mica: error: $since is not a commit in this repository; expected an ancestor of HEAD" >&2; exit 2; }
    since=$(git rev-list --max-parents=0 HEAD | tail -1)   # fewer than ten commits here
  fi
  candidates=$(changed_since "$since")
fi

cmake --preset dev -B "$folder" --log-level=WARNING -DCMAKE_UNITY_BUILD=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DMICA_EMULATE_CUDA=ON >/dev/null
# Without its OpenMP library clang has no omp.h, and gcc's has an attribute that clang does not know.
mkdir -p "$folder/headers"
cat >"$folder/headers/omp.h" <<'EOF'
extern "C" {
int omp_get_max_active_levels();
int omp_get_max_threads();
int omp_get_thread_limit();
int omp_get_thread_num();
int omp_get_num_threads();
void omp_set_dynamic(int);
void omp_set_num_threads(int);
}
EOF
files=() num_left_out=0
while read -r name; do
  [[ "$name" != src/tensor/cpu/isa/* ]] || continue   # their vectors are for gcc
  grep -qF "\"file\": \"$PWD/$name\"" "$folder/compile_commands.json" || continue   # deleted, or not built here
  if [[ ${#files[@]} -lt $most ]]; then files+=("$name"); else num_left_out=$((num_left_out + 1)); fi
done <<<"$candidates"
status=0
if [[ ${#files[@]} -gt 0 ]]; then
  printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(scripts/build-jobs.sh)" clang-tidy-16 -p "$folder" --quiet --extra-arg=-Wno-unknown-warning-option \
    "--extra-arg=-isystem$PWD/$folder/headers" 2>"$folder/stderr.txt" || status=$?
  [[ $status -eq 0 ]] || grep -E 'error' "$folder/stderr.txt" >&2 || true
fi
echo "tidy check: ${#files[@]} files, $num_left_out left out"
[[ $status -eq 0 ]] || { echo "tidy check: fix it, or mark the line with // NOLINT(check) and a reason" >&2; exit 1; }
