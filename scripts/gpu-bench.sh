#!/usr/bin/env bash
# How fast a GPU trains, beside PyTorch's compiled FSDP2 in the same run on the same card. In a build with CUDA, or in the
# folder that scripts/gpu-check.sh packs; Mica and the peer take turns. JSON lines go to results/bench.jsonl, a table to the terminal.
#   scripts/gpu-bench.sh                  every stage, or: tokens peer large staged
#   PYTHON=python3 scripts/gpu-bench.sh tokens peer
# tokens: gpt2-124m, bf16, T=1024, micro-batches doubled while they fit   peer: the same by PyTorch, one rank
# large:  a 1.5B model, for the share of the card's peak                  staged: 2 ranks on one GPU, with a trace
set -uo pipefail
cd "$(dirname "$0")"
if [[ -x bin/mica-bench ]]; then   # packed
  bin=bin peer=torch_fsdp.py
  export LD_LIBRARY_PATH="$PWD/lib:${LD_LIBRARY_PATH:-}" OPAL_PREFIX="$PWD" OMPI_MCA_mca_base_component_path="$PWD/lib/openmpi"
else
  cd ..
  bin=build/cuda/bin peer=scripts/peers/torch_fsdp.py
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
out=${OUT:-$PWD/results}
mkdir -p "$out"
python=${PYTHON:-python3}

mica() { "$bin/mica-bench" train --seq 1024 --dtype bf16 --steps 20 --warmup 5 --mesh.device=cuda "$@" | tee -a "$out/bench.jsonl"; }
torch() { "$python" "$peer" --device cuda --ranks 1 --mode fsdp2 --compile --dtype bf16 --seq 1024 --steps 20 --warmup 5 "$@" | tee -a "$out/bench.jsonl"; }

stage_tokens() {
  for batch in 8 16 32 64 128; do mica --model gpt2-124m --batch "$batch" || break; done
}
stage_peer() {
  for batch in 8 16 32 64; do torch --model gpt2-124m --batch "$batch" || break; done
  mica --model gpt2-124m --batch 32   # in turns: the card may have changed its clock
}
stage_large() {
  for batch in 4 8 16; do mica --model gpt2-1.5b --batch "$batch" || break; done
}
stage_staged() {
  command -v mpirun > /dev/null || { echo "staged with 2 ranks: left out, mpirun is not here" >&2; return; }
  mpirun -np 2 "$bin/mica-bench" train --model gpt2-124m --batch 8 --seq 1024 --dtype bf16 --steps 10 --mesh.device=cuda \
    --mesh.backend=staged | tee -a "$out/bench.jsonl"
}

[[ $# -eq 0 ]] && set -- tokens peer large staged
nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.limit --format=csv,noheader
for stage in "$@"; do
  echo "== $stage"
  "stage_$stage"
done
