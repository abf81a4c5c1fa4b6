#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the launcher command given; expects the status and the output of an aborted job.
output=$("$@" 2>&1)
status=$?
echo "$output"
[ "$status" -eq 3 ] || { echo "FAILED: the launcher's status is $status, expected 3"; exit 1; }
echo "$output" | grep -q "written by rank 1 before its end" || { echo "FAILED: rank 1's buffered output is lost"; exit 1; }
echo "$output" | grep -q "came out of the barrier" && { echo "FAILED: the others went on"; exit 1; }
exit 0
