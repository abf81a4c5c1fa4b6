#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints how many compilers may run at a time: CMAKE_BUILD_PARALLEL_LEVEL, or a CPU and 2 GiB of memory for each. On login nodes the memory
# of a user is often limited (cgroup v2).
set -euo pipefail
if [[ "${CMAKE_BUILD_PARALLEL_LEVEL:-}" =~ ^[1-9][0-9]*$ ]]; then
  echo "$CMAKE_BUILD_PARALLEL_LEVEL"
  exit
fi
free=$(($(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo) / 1024))   # MiB
group=$(sed -n 's/^0:://p' /proc/self/cgroup)
while :; do   # the limits of all groups above it count, too
  at=/sys/fs/cgroup${group%/}
  limit=$(cat "$at/memory.max" 2>/dev/null || echo max)
  if [[ $limit != max ]]; then
    cached=$(sed -n 's/^inactive_file //p' "$at/memory.stat" 2>/dev/null || true)   # which the kernel drops when memory is asked for
    left=$(((limit - $(cat "$at/memory.current") + ${cached:-0}) / 1048576))
    if [[ $left -lt $free ]]; then free=$left; fi
  fi
  [[ "$group" == /?* ]] || break
  group=${group%/*}
done
jobs=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)   # which obeys variables of OpenMP
if [[ $jobs -gt $((free / 2048)) ]]; then jobs=$((free / 2048)); fi
echo $((jobs > 0 ? jobs : 1))
