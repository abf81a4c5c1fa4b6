#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the launcher command given, once for each way to fail: the job ends with the error's status and one line that says why.
failed=0
expect() {  # way, status, line ("" for none)
  way=$1 wanted=$2 line=$3
  shift 3
  output=$("$@" "$way" 2>&1)
  status=$?
  lines=$(echo "$output" | grep "mica: error:")
  [ "$status" -eq "$wanted" ] && [ "$lines" = "$line" ] && return
  echo "FAILED: $way ended with status $status, expected $wanted, and said"
  echo "$output"
  failed=1
}
expect alike 2 "mica: error: digits.txt: cannot be read" "$@"
expect each 2 "mica: error: rank 0: a mistake of rank 0" "$@"
expect own 42 "mica: error: no digits are left" "$@"
expect foreign 3 "mica: error: two lines" "$@"
expect one 3 "mica: error: rank 1: disk full" "$@"
expect agreed 2 "mica: error: rank 2: a file of rank 2 alone" "$@"
expect requeue 75 "" "$@"
expect done 0 "" "$@"
exit $failed
