#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a command in a memory cgroup of its own without a limit, inside one with a limit: Slurm nests them so.
#   memory_cgroup.sh BYTES COMMAND...
# Ends with the command's status; with 99 where no such cgroup can be made.
bytes=$1
shift
base=$(sed -n 's|^[0-9]*:memory:|/sys/fs/cgroup/memory|p' /proc/self/cgroup)
file=memory.limit_in_bytes
if [ -z "$base" ]; then  # version 2
  base=$(sed -n 's|^0::|/sys/fs/cgroup|p' /proc/self/cgroup)
  file=memory.max
fi
outer=$base/mica_test_$$

# Processes that have just ended may still be in it.
remove() {
  tries=100
  while [ -d "$outer" ] && [ $tries -gt 0 ]; do
    rmdir "$outer/inner" "$outer" 2>/dev/null || sleep 0.05
    tries=$((tries - 1))
  done
}
trap remove EXIT

make() {
  mkdir "$outer" || return 1
  if [ $file = memory.max ]; then echo +memory >"$outer/cgroup.subtree_control" || return 1; fi
  mkdir "$outer/inner" && echo "$bytes" >"$outer/$file" && [ "$(cat "$outer/$file")" = "$bytes" ]
}
if ! make 2>/dev/null; then
  echo "no memory cgroup with a limit can be made in $base" >&2
  exit 99
fi
(echo 0 >"$outer/inner/cgroup.procs" && exec "$@")
