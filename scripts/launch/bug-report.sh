#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Collects the information for a bug report in one archive. Look through it before you send it: it has paths and host names.
#   scripts/launch/bug-report.sh RUN_FOLDER [REPORT.tar.gz]
# Config, log and metrics (of long ones both ends), a description of the newest checkpoint; versions, machine and file system; and
# variables of MPI, Slurm, OpenMP and CUDA. No tokens, no parameters. Run it on a node of the kind that failed, if you can.
set -euo pipefail
run=${1:-}
if [[ ! -d "$run" ]]; then
  echo "mica: error: '$run' is not a folder: give the run's folder, $0 RUN_FOLDER" >&2
  exit 2
fi
report=${2:-$(basename "$(realpath "$run")")-report.tar.gz}
[[ "$report" == */* ]] || report=./$report   # to tar a colon ends a host's name, unless there is a slash before it
bin=${MICA_BIN:-build/release/bin}
[[ -n "${MICA_BIN:-}" || -x "$bin/mica-train" ]] || bin=$(dirname "$0")/../../../bin   # installed: PREFIX/share/mica/launch
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/report"

# Adds the output of a command, which may be missing or fail: that is information, too.
say() {
  local file=$folder/report/$1 status=0
  shift
  printf '$ %s\n' "$*" >> "$file"
  timeout 60 "$@" >> "$file" 2>&1 </dev/null || status=$?
  [[ $status -eq 0 ]] || printf '(status %s)\n' "$status" >> "$file"
  printf '\n' >> "$file"
}

for file in config.resolved.cfg run.lock; do
  if [[ -f "$run/$file" ]]; then cp "$run/$file" "$folder/report/"; fi
done
# The start of the log has the config and the plan, its end what went wrong.
for file in log.txt metrics.jsonl; do
  if [[ ! -f "$run/$file" ]]; then continue; fi
  if [[ $(wc -l < "$run/$file") -le 3000 ]]; then
    cp "$run/$file" "$folder/report/"
  else
    { head -n 1000 "$run/$file"; tail -n 2000 "$run/$file"; } > "$folder/report/$file"
  fi
done
say checkpoint.txt "$bin/mica-inspect" "$run"
say checkpoint.txt ls -lR "$run"
say versions.txt "$bin/mica-train" --version
say versions.txt mpirun --version
say versions.txt srun --version
say versions.txt ldd "$bin/mica-train"
say versions.txt uname -a
say versions.txt cat /etc/os-release
say machine.txt lscpu
say machine.txt head -n 5 /proc/meminfo
say machine.txt cat /proc/self/cgroup
say machine.txt bash -c 'ulimit -a'
say machine.txt df -PT "$run"
if command -v nvidia-smi > /dev/null; then say machine.txt nvidia-smi; fi
# SLURM_JWT is a credential.
env | grep -E '^(MICA|OMP|GOMP|OMPI|PMIX|PRTE|PMI|MPICH|MPIR|I_MPI|UCX|FI|SLURM|NCCL|CUDA|HDF5)_|^(LD_LIBRARY_PATH|TMPDIR)=' \
  | grep -v '^SLURM_JWT=' | sort > "$folder/report/environment.txt" || true

tar -C "$folder" -czf "$report" report
echo "wrote $report: look through it (tar -tzf), then send it with the command that you ran and what you expected"
