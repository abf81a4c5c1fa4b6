#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ranks on the cores of this machine, or of the hosts in a hostfile ("HOST slots=CORES" a line).
#   RANKS=4 THREADS=8 scripts/launch/mpirun-cpu.sh CONFIG [--section.key=value ...]
#   HOSTFILE=hosts THREADS=8 scripts/launch/mpirun-cpu.sh CONFIG      as many ranks as fit on the hosts' cores
set -euo pipefail
[[ $# -ge 1 ]] || { echo "mica: error: no config: $0 CONFIG [--section.key=value ...]" >&2; exit 2; }
# shellcheck source=scripts/launch/save_on_interrupt.sh
source "$(dirname "$0")/save_on_interrupt.sh"
bin=${MICA_BIN:-build/release/bin}
[[ -n "${MICA_BIN:-}" || -x "$bin/mica-train" ]] || bin=$(dirname "$0")/../../../bin   # installed: PREFIX/share/mica/launch
threads=${THREADS:-1}
expect_number THREADS "$threads"
cores=${CORES_PER_RANK:-$threads}   # fewer than threads where two of them share a core
expect_number CORES_PER_RANK "$cores"
[[ -z "${RANKS:-}" ]] || expect_number RANKS "$RANKS"

# Cores that this script may use, as Open MPI counts them: nproc counts hardware threads, and obeys variables of OpenMP.
num_cores() {
  local allowed cores
  allowed=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status) || true
  cores=$(lscpu -p=CPU,CORE,SOCKET 2>/dev/null | awk -F, -v allowed="$allowed" '
    BEGIN {
      num = split(allowed, ranges)
      for (i = 1; i <= num; ++i) {
        last = split(ranges[i], ends, "-")
        for (cpu = ends[1] + 0; cpu <= ends[last] + 0; ++cpu) may[cpu]
      }
    }
    /^[0-9]/ && $1 in may && $2 ~ /^[0-9]+$/ && !known[$2, $3]++ { ++cores }
    END { print cores + 0 }') || true
  if [[ "$cores" -ge 1 ]]; then echo "$cores"; else env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc; fi
}

hosts=()
if [[ -n "${HOSTFILE:-}" ]]; then
  expect_hostfile
  # Open MPI takes a slot for a rank of any number of cores, and all cores of a rank are on one host.
  slots=$(mktemp)
  trap 'rm -f "$slots"' EXIT
  hosts=(--hostfile "$slots")
  most=$(awk -v cores_per_rank="$cores" -v ranks="${RANKS:-}" -v slots="$slots" '
    function told(what) { print "mica: " what > "/dev/stderr" }
    { sub(/\r$/, "") }   # written on Windows
    /^[ \t]*(#|$)/ { next }
    match($0, /[ \t]slots[ \t]*=[ \t]*[0-9]+/) {
      cores = substr($0, RSTART, RLENGTH); sub(/.*=[ \t]*/, "", cores); fit = int(cores / cores_per_rank); most += fit
      if (fit) print substr($0, 1, RSTART) "slots=" fit substr($0, RSTART + RLENGTH) > slots
      else told(FILENAME ":" FNR ": " $1 " has fewer than " cores_per_rank " cores: no rank starts there")
      next }
    ranks && cores_per_rank == 1 { print > slots; most = ranks; next }   # Open MPI counts the cores
    { told("error: " FILENAME ":" FNR ": " $1 " has no slots=CORES: add it, or set RANKS=N and THREADS=1"); failed = 1; exit 2 }
    END { if (!failed) print most + 0 }' "$HOSTFILE")
  ranks=$((most ? ${RANKS:-most} : 0))
else
  ranks=${RANKS:-${SLURM_NTASKS:-$(($(num_cores) / cores))}}   # in a Slurm allocation mpirun knows the hosts
fi
[[ "$ranks" -ge 1 ]] || { echo "mica: error: no host has $cores cores for a rank: lower THREADS" >&2; exit 2; }
export OMP_NUM_THREADS=$threads OMP_PLACES=cores
save_on_interrupt mpirun -np "$ranks" "${hosts[@]}" --map-by "slot:PE=$cores" --bind-to core \
  "$bin/mica-train" "$1" --mesh.device=cpu "${@:2}"
