#!/usr/bin/env bash
# Ranks on the cores of this machine, or of the hosts in a hostfile.
#   RANKS=4 THREADS=8 scripts/launch/mpirun-cpu.sh CONFIG [--section.key=value ...]
set -euo pipefail
# shellcheck source=scripts/launch/save_on_interrupt.sh
source "$(dirname "$0")/save_on_interrupt.sh"
bin=${MICA_BIN:-build/release/bin}
threads=${THREADS:-1}
hosts=()
[[ -n "${HOSTFILE:-}" ]] && hosts=(--hostfile "$HOSTFILE")
export OMP_NUM_THREADS=$threads OMP_PLACES=cores
save_on_interrupt mpirun -np "${RANKS:-$(($(nproc) / threads))}" "${hosts[@]}" --map-by "slot:PE=$threads" --bind-to core -x OMP_NUM_THREADS -x OMP_PLACES \
  "$bin/mica-train" "$1" --mesh.device=cpu "${@:2}"
