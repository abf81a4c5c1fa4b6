#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the stored sample of the checkpoint format that a build writes: tests/reference/checkpoint_format_N.
#     tests/reference/make_checkpoint_sample.sh [BIN_DIR]        (default: build/release/bin)
# Run it before kFormatVersion is raised (include/mica/checkpoint/manifest.hpp): from then on fault.old_formats resumes it.
#   run.cfg, tokens.bin           those of the sample before: the same run in every format
#   checkpoints/step-00000005     of 2 ranks: an ignored parameter, parameters with step counts of their own
#   metrics.jsonl                 of the run that went on to step 10 without a stop
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=$(cd "${1:-$here/../../build/release/bin}" && pwd)
. "$here/../../scripts/environment.sh"
before=$(ls -d "$here"/checkpoint_format_* | sort -V | tail -1)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$before"/run.cfg "$before"/tokens.bin "$work"
cd "$work"
mpirun -np 2 "$bin/mica-train" run.cfg > log.txt 2>&1 || { cat log.txt; exit 1; }
version=$(sed -n 's/.*"format_version": \([0-9]*\),.*/\1/p' runs/sample/checkpoints/step-00000005/manifest.json)
sample=$here/checkpoint_format_$version
[[ ! -e $sample ]] || { echo "$sample exists already"; exit 1; }
mkdir -p "$sample/checkpoints"
cp run.cfg tokens.bin runs/sample/metrics.jsonl "$sample"
cp -r runs/sample/checkpoints/step-00000005 "$sample/checkpoints"
echo "made $sample; commit it"
