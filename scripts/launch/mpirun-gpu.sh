#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One rank per GPU, on the hosts of a hostfile.
#   scripts/launch/mpirun-gpu.sh CONFIG [--section.key=value ...]
#   HOSTFILE=hosts GPUS_PER_NODE=8 scripts/launch/mpirun-gpu.sh configs/gpt2-124m.cfg --fsdp.strategy=hybrid_shard --mesh.shard_size=node
set -euo pipefail
[[ $# -ge 1 ]] || { echo "mica: error: no config: $0 CONFIG [--section.key=value ...]" >&2; exit 2; }
# shellcheck source=scripts/launch/save_on_interrupt.sh
source "$(dirname "$0")/save_on_interrupt.sh"
bin=${MICA_BIN:-build/cuda/bin}
[[ -n "${MICA_BIN:-}" || -x "$bin/mica-train" ]] || bin=$(dirname "$0")/../../../bin   # installed: PREFIX/share/mica/launch
gpus=${GPUS_PER_NODE:-$(nvidia-smi --list-gpus | grep -c '^GPU ' || true)}
[[ "$gpus" != 0 || -n "${GPUS_PER_NODE:-}" ]] || { echo "mica: error: nvidia-smi lists no GPU here: set GPUS_PER_NODE=N" >&2; exit 2; }
expect_number GPUS_PER_NODE "$gpus"
hosts=()
nodes=${SLURM_JOB_NUM_NODES:-1}   # in a Slurm allocation mpirun knows the hosts
if [[ -n "${HOSTFILE:-}" ]]; then
  expect_hostfile
  hosts=(--hostfile "$HOSTFILE")
  nodes=$(grep -cv '^[[:space:]]*\(#\|$\)' "$HOSTFILE")
fi
# A rank's cores are near its GPU when ranks are dealt out by socket; NCCL_CROSS_NIC helps the inter-node axis of hybrid meshes.
export NCCL_CROSS_NIC=${NCCL_CROSS_NIC:-1}
save_on_interrupt mpirun -np $((gpus * nodes)) "${hosts[@]}" --map-by "ppr:$gpus:node" --bind-to none \
  "$bin/mica-train" "$1" --mesh.device=cuda "${@:2}"
