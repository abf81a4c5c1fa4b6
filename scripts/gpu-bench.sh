#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures training on a GPU, compared with PyTorch's compiled FSDP2 (the peer) on the same GPU; both run in turns. Works in a build
# with CUDA, or in the folder that scripts/gpu-check.sh packs. JSON lines go to results/bench.jsonl, a table to the terminal.
#   scripts/gpu-bench.sh                  every stage, or: tokens peer large staged
#   PYTHON=python3 scripts/gpu-bench.sh tokens peer
# tokens: gpt2-124m, bf16, T=1024, micro-batches doubled while they fit   peer: the same by PyTorch, FSDP2 and plain, one rank
# large:  a 1.5B model, for the share of the card's peak                  staged: 2 ranks on one GPU, with a trace
set -uo pipefail
cd "$(dirname "$0")"
if [[ -x bin/mica-bench ]]; then   # packed
  bin=bin peer=torch_fsdp.py share=share
  # shellcheck source=/dev/null
  source ./environment
else
  cd ..
  # shellcheck source=scripts/environment.sh
  source scripts/environment.sh
  bin=build/cuda/bin peer=scripts/peers/torch_fsdp.py share=configs
  text=build/gpu-bench-text
  [[ -e $text.train.h5 ]] || "$bin/mica-tokenize" --quiet --vocab=bytes --out="$text.h5" /usr/share/common-licenses/GPL-3
fi
text=${text:-share/text}
out=${OUT:-$PWD/results}
mkdir -p "$out"
python=${PYTHON:-python3}

mica() { "$bin/mica-bench" train --seq 1024 --dtype bf16 --steps 20 --warmup 5 --mesh.device=cuda "$@" | tee -a "$out/bench.jsonl"; }
torch() { "$python" "$peer" --device cuda --ranks 1 --mode fsdp2 --compile --dtype bf16 --seq 1024 --steps 20 --warmup 5 "$@" | tee -a "$out/bench.jsonl"; }

stage_tokens() {
  for batch in 8 16 32 64 128; do mica --model gpt2-124m --batch "$batch" || break; done
  for batch in 32 64; do mica --model gpt2-124m --batch "$batch" --train.reproducible=false; done   # as the peer, which does not guarantee an order either
  mica --model gpt2-124m --batch 32 --train.f32_logits=false     # as the peer, whose logits are bf16
  MICA_GPU_EPILOGUES=off mica --model gpt2-124m --batch 32       # GELUs as kernels of their own
  mica --model gpt2-124m --batch 32 --fsdp.recompute=cheap       # outputs of norms and GELUs are recomputed; the peer keeps them
}
stage_peer() {
  for batch in 8 16 32 64; do torch --model gpt2-124m --batch "$batch" || break; done
  torch --mode plain --model gpt2-124m --batch 32
  mica --model gpt2-124m --batch 32   # again, since the GPU's clock may have changed
  torch --model gpt2-1.5b --batch 8
}
stage_large() {
  for batch in 4 8 16 24 32; do mica --model gpt2-1.5b --batch "$batch" || break; done
  mica --model gpt2-1.5b --batch 16 --train.reproducible=false
  mica --model gpt2-1.5b --batch 24 --fsdp.recompute=cheap   # keeping outputs may not fit
}
stage_staged() {
  mpirun -np 2 "$bin/mica-bench" train --model gpt2-124m --batch 8 --seq 1024 --dtype bf16 --steps 10 --mesh.device=cuda \
    --mesh.backend=staged | tee -a "$out/bench.jsonl"
  # How much communication was overlapped: a model of 12 blocks of width 768, three steps traced.
  rm -rf "$out/staged"
  mpirun -np 2 "$bin/mica-train" "$share/gpt2-tiny-text.cfg" --data.train="$text.train.h5" --data.val="$text.val.h5" \
    --run.dir="$out/staged" --mesh.device=cuda --mesh.backend=staged --fsdp.param_dtype=bf16 --model.layers=12 --model.width=768 \
    --model.heads=12 --model.context=1024 --train.seq_len=1024 --train.micro_batch=4 --train.steps=9 --optim.warmup_steps=2 --log.trace=6-8
  "$bin/mica-report" traces "$out"/staged/trace-rank*.json | tee -a "$out/staged.txt"
}

[[ $# -eq 0 ]] && set -- tokens peer large staged
nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.limit --format=csv,noheader
for stage in "$@"; do
  echo "== $stage"
  "stage_$stage"
done
