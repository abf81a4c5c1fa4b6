#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the launcher command given, which kills a rank: the job ends by itself, and none of its segments is left.
output=$("$@" 2>&1)
status=$?
echo "$output"
[ "$status" -ne 0 ] || { echo "FAILED: the job ended well"; exit 1; }
echo "$output" | grep -q "came out of the wait" && { echo "FAILED: the others went on"; exit 1; }
pids=$(echo "$output" | sed -n 's/^.*rank [0-9]* is \([0-9]*\), shared: 1$/\1/p')
[ "$(echo "$pids" | wc -w)" -eq 3 ] || { echo "FAILED: three ranks were to share memory"; exit 1; }
for pid in $pids; do
  for file in /dev/shm/mica-"$pid"-*; do
    [ -e "$file" ] && { echo "FAILED: $file is left"; exit 1; }
  done
done
exit 0
