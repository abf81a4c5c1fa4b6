#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the launcher command given; expects the error's status and its line, the lowest rank's first, and no stack trace.
output=$("$@" 2>&1)
status=$?
echo "$output"
[ "$status" -eq 2 ] || { echo "FAILED: the launcher's status is $status, expected 2"; exit 1; }
first=$(echo "$output" | grep "mica: error:" | head -n 1)
[ "$first" = "mica: error: rank 0: a mistake of rank 0" ] || { echo "FAILED: the first error line is '$first'"; exit 1; }
echo "$output" | grep -qE "terminate called|Signal: Aborted|\[ 0\]" && { echo "FAILED: a stack trace"; exit 1; }
exit 0
