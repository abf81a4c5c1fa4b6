#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh Debian machine to a sharded GPT-2 that has trained on real text and saved a checkpoint.
#   scripts/quickstart.sh [FILE_OR_FOLDER_OF_TEXT...]
# A named file is always read; in folders, files that look like text (copyright, README*, *.txt, *.md, *.pod). At most
# MAX_MB megabytes (4) are read. Without an argument: licence texts and documentation that every Debian machine has.
set -euo pipefail
sources=()
for source in "$@"; do   # as the user sees them, before this script goes to its own folder
  [[ -r "$source" ]] || { echo "mica: error: cannot read $source: name a text file or a folder of them" >&2; exit 2; }
  sources+=("$(realpath -- "$source")")
done
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
source scripts/environment.sh

jobs=$(scripts/build-jobs.sh)
run=runs/quickstart
step() { printf '\n== %s\n' "$*"; }

step "1/4  Debian packages"
scripts/install-packages.sh

step "2/4  Configure and build the programs (build/release)"
flags=()
[[ "${CI:-}" == "true" ]] && flags+=(-DMICA_WERROR=ON)
cmake --preset release --log-level=WARNING "${flags[@]}"
cmake --build --preset release --parallel "$jobs" --target programs
bin=build/release/bin

step "3/4  Gather and tokenize text"
rm -rf "$run"   # the quickstart's own folder; each quickstart starts a new run
mkdir -p "$run"
[[ $# -gt 0 ]] || sources=(/usr/share/common-licenses /usr/share/doc /usr/share/perl)
# Named files, in the order given; then text files in folders, in a fixed order.
{
  for source in "${sources[@]}"; do
    if [[ -f "$source" ]]; then printf '%s\0' "$source"; fi
  done
  for source in "${sources[@]}"; do
    if [[ -d "$source" ]]; then
      find -L "$source" -type f -size +1k \( -path '/usr/share/common-licenses/*' -o -name 'copyright' -o -name '*.txt' \
        -o -name '*.md' -o -name 'README*' -o -name '*.pod' \) -print0 2>/dev/null || true
    fi
  done | LC_ALL=C sort -z
} > "$run/files"
limit=$((${MAX_MB:-4} * 1000000))
# (head closes the pipe early, which is not a failure.)
{ xargs -0 -r cat < "$run/files" 2>/dev/null || true; } | head -c "$limit" > "$run/text.txt" || true
[[ -s "$run/text.txt" ]] || { echo "mica: error: found no text under ${sources[*]}; name a text file: scripts/quickstart.sh FILE" >&2; exit 2; }
if [[ $(stat -c %s "$run/text.txt") -eq $limit ]]; then
  echo "only the first $((limit / 1000000)) MB of the text are read, which keeps this short; for more: MAX_MB=100 scripts/quickstart.sh ..."
fi
"$bin/mica-tokenize" --vocab=bytes --out="$run/corpus.h5" --val-fraction=0.1 "$run/text.txt"

step "4/4  Train a sharded GPT-2 on 4 ranks (configs/gpt2-tiny-text.cfg)"
train=(mpirun -np 4 "$bin/mica-train" configs/gpt2-tiny-text.cfg "--run.dir=$run" "--data.train=$run/corpus.train.h5"
       "--data.val=$run/corpus.val.h5")
"${train[@]}"

losses() { grep '"event":"step"' "$run/metrics.jsonl" | sed 's/.*"loss":\([^,]*\).*/\1/'; }
LC_ALL=C printf '\n== Done: training loss %.2f at the first step, %.2f at the last (in nats a byte; 5.55 is guessing).\n' \
  "$(losses | head -n 1)" "$(losses | tail -n 1)"
printf '\n== What it writes now, after "The " (bin/mica-generate):\n'
"$bin/mica-generate" "$run" --prompt="The " --max-new-tokens=100 --temperature=0.7 --top-k=40 --quiet
cat <<EOF

What to try next, in this folder:

# what mpirun needs on one machine, once per shell
source scripts/environment.sh
# what is in the newest checkpoint
$bin/mica-inspect $run
# generate text from it; another seed gives another text
$bin/mica-generate $run --prompt="This " --temperature=0.8 --seed=2
# twice as many steps: resumes from that checkpoint
${train[*]} --train.steps=400
# shards in pairs, replicas across them
mpirun -np 4 $bin/mica-train configs/hybrid-2x2.cfg --data.train=$run/corpus.train.h5 --data.val=$run/corpus.val.h5
# every key of a config
$bin/mica-train --help
# the tests
scripts/test.sh
EOF
