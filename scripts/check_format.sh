#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Is the code laid out as .clang-format says?   scripts/check_format.sh [--mend]
# Debian 12's clang-format 14: other versions lay some lines out otherwise.
set -euo pipefail
cd "$(dirname "$0")/.."
todo=(--dry-run -Werror)
[[ "${1:-}" == "--mend" ]] && todo=(-i)
git ls-files -z '*.cpp' '*.hpp' '*.h' '*.cu' '*.cuh' '*.inc' | xargs -0 -n 50 -P "$(nproc)" clang-format-14 "${todo[@]}" && status=0 || status=$?
[[ $status -eq 0 ]] || { echo "format check: mend with scripts/check_format.sh --mend" >&2; exit 1; }
echo "format check: 0 wrong"
