#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Puts the headers of NVIDIA's cudnn-frontend into build/cudnn-frontend, if the package registry can be reached. With them a build for
# GPUs uses cuDNN's attention, without them Mica's own; CMake prints which.
set -uo pipefail
cd "$(dirname "$0")/.."
folder=build/cudnn-frontend
package=nvidia-cudnn-frontend==1.32.0
if [[ "$(cat "$folder/made-from.txt" 2>/dev/null)" == "$package" ]]; then
  echo "cudnn-frontend: $folder exists"
  exit 0
fi
rm -rf "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if python3 -m venv "$work/venv" >/dev/null 2>&1 &&
  "$work/venv/bin/pip" install --quiet --disable-pip-version-check --timeout 20 --retries 1 --no-deps --target "$work/package" "$package"; then
  mkdir -p "$folder"
  mv "$work/package/include" "$folder/"
  echo "$package" >"$folder/made-from.txt"
  echo "cudnn-frontend: installed in $folder"
else
  echo "cudnn-frontend: cannot be installed here; a build for GPUs uses Mica's own attention"
fi
