#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the launcher command given, which kills a rank: the job ends by itself, and nobody takes half a result for a whole one.
output=$("$@" 2>&1)
status=$?
echo "$output"
[ "$status" -ne 0 ] || { echo "FAILED: the job ended well"; exit 1; }
echo "$output" | grep -q "came out of the collective" && { echo "FAILED: the others went on"; exit 1; }
[ "$(echo "$output" | grep -c "has sent [48]000000 bytes to the other node")" -eq 4 ] || { echo "FAILED: it was not by node"; exit 1; }
exit 0
