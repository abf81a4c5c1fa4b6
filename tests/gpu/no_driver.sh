#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Writes the C source of a library that has all names of CUDA's driver and says yes to all they ask, but that there is no
# GPU: what plans for a GPU that is not here looks for a driver, and loads what it compiled.
#   no_driver.sh <the toolkit's stub of libcuda> <file to write>
set -euo pipefail
mkdir -p "$(dirname "$2")"
nm -D --defined-only "$1" | awk '$2 == "T" {sub(/@.*/, "", $3); print $3}' | sort -u | while read -r name; do
  case $name in
    cuInit | cuDeviceGet | cuDeviceGetCount) echo "int $name(void) { return 100; }" ;;   # CUDA_ERROR_NO_DEVICE
    cuLibraryLoadData | cuLibraryGetKernel | cuKernelGetFunction | cuModuleLoadData* | cuModuleGetFunction)
      echo "int $name(void** handle) { static int it; *handle = &it; return 0; }" ;;
    *) echo "int $name(void) { return 0; }" ;;
  esac
done > "$2"
