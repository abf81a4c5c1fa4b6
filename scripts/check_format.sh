#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks that the code is formatted as .clang-format says.   scripts/check_format.sh [--mend]
# Needs clang-format 14, as in Debian 12: other versions format some lines differently.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/any_owners_git.sh
source scripts/any_owners_git.sh
leave_out_without_git "format check"
todo=(--dry-run -Werror)
[[ "${1:-}" == "--mend" ]] && todo=(-i)
git ls-files -z --cached --others --exclude-standard '*.cpp' '*.hpp' '*.h' '*.cu' '*.cuh' '*.inc' | xargs -0 -n 50 -P "$(nproc)" clang-format-14 "${todo[@]}" && status=0 || status=$?
[[ $status -eq 0 ]] || { echo "format check: mend with scripts/check_format.sh --mend" >&2; exit 1; }
echo "format check: 0 wrong"
