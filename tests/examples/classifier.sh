#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs examples/classifier as a user would: on 1, 2 and 4 ranks, stopped and started again, and with mistakes.
#   classifier.sh DIGITS PROGRAMS CLASSIFIER LAUNCHER     LAUNCHER: a command that takes the number of ranks next
digits=$1 programs=$2 classifier=$3 launcher=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "FAILED: $1"
  cat "$work/output"
  exit 1
}
# run RANKS FOLDER STEPS [DIGITS]: its output is in $work/output, what it says of steps in $steps.
run() {
  # shellcheck disable=SC2086  # the launcher is several words
  $launcher "$1" "$classifier" "${4:-$digits}" "$work/$2" "$3" >"$work/output" 2>&1
  status=$?
  steps=$(grep "^step" "$work/output")
}
# refused STATUS TEXT: it ended so, and told why in one line of the whole job.
refused() {
  [ "$status" -eq "$1" ] || fail "status $status, expected $1"
  [ "$(grep -c "mica: error:" "$work/output")" -eq 1 ] || fail "not one error"
  grep -q "mica: error: .*$2" "$work/output" || fail "the error does not say '$2'"
}
same() {
  "$programs/mica-inspect" diff "$work/$1" "$work/$2" >"$work/output" 2>&1 || fail "$1 and $2 are not the same checkpoint"
}

run 1 one 60
[ "$status" -eq 0 ] || fail "status $status on one rank"
alone=$steps
[ "$(echo "$alone" | wc -l)" -eq 3 ] || fail "expected three lines of steps"
for ranks in 2 4; do
  run $ranks "on$ranks" 60
  [ "$status" -eq 0 ] || fail "status $status on $ranks ranks"
  [ "$steps" = "$alone" ] || fail "other numbers on $ranks ranks than on one: $alone"
  same one "on$ranks"
done

# Stopped after 40 steps and started again, on other ranks.
run 4 cut 40
[ "$status" -eq 0 ] || fail "status $status at the first start"
run 1 cut 60
[ "$status" -eq 0 ] || fail "status $status at the second start"
grep -q "goes on from .*step-00000040" "$work/output" || fail "it did not go on from step 40"
[ "$steps" = "$(echo "$alone" | tail -n 1)" ] || fail "other numbers than without a stop: $alone"
same one cut

run 2 one 120
[ "$status" -eq 0 ] || fail "status $status up to step 120"
echo "$steps" | tail -n 1 | awk '$1 == "step" && $2 == 120 && $6 >= 85 { good = 1 } END { exit !good }' || fail "it did not learn to read digits"

# Using the trained model.
"$programs/mica-inspect" "$work/one" >"$work/output" 2>&1 || fail "mica-inspect does not know the checkpoint"
grep -q "type=classifier" "$work/output" || fail "the checkpoint does not say what the model is"
"$programs/mica-convert" consolidate "$work/one" "$work/digits.h5" >"$work/output" 2>&1 || fail "it is not to be consolidated"
[ -s "$work/digits.h5" ] || fail "no digits.h5"

# Mistakes.
run 4 none 20 "$work/no-such-file"
refused 2 "no-such-file: cannot be read"
run 3 none 20
refused 2 "not a multiple"
usual=$launcher
launcher="env OMP_NUM_THREADS=2 OMP_THREAD_LIMIT=1 $usual"
run 2 none 20
refused 2 "OpenMP may start 1 of 2 threads"
launcher=$usual
sed 1d "$digits" >"$work/others"
run 2 cut 80 "$work/others"
refused 2 "was trained on"
sed '5s/ [0-9]*$/ 12/' "$digits" >"$work/twelve"
run 2 twelve 40 "$work/twelve"
refused 3 "target 12 in row [0-9]* is not one of the 10 classes"
