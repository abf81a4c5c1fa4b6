#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes build/reference-venv with the Python packages that tests/conformance compares Mica with, if a package registry can be reached.
# Without them those tests are not registered, and CMake says so; nothing else needs them.
set -uo pipefail
cd "$(dirname "$0")/.."
venv=build/reference-venv
requirements=tests/reference/requirements.txt
if cmp -s "$requirements" "$venv/made-from.txt"; then
  echo "reference packages: $venv exists"
  exit 0
fi
rm -rf "$venv"
mkdir -p build
if python3 -m venv "$venv" >/dev/null 2>&1 && "$venv/bin/pip" install --quiet --disable-pip-version-check --no-compile --timeout 20 --retries 1 -r "$requirements"; then
  cp "$requirements" "$venv/made-from.txt"
  echo "reference packages: installed in $venv"
else
  rm -rf "$venv"
  echo "reference packages: cannot be installed here; the conformance tests are left out"
fi
