# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by the batch scripts: run_job DEVICE CONFIG [--section.key=value ...] trains in this Slurm job, requeues it if that
# helps, and ends with the run's status.
launch=$(dirname "${BASH_SOURCE[0]}")

# Prints the launcher: "srun PLUGIN", or "mpirun". srun needs a plugin for the protocol of the MPI library that mica-train was built
# with; with another one each process is rank 0 of 1.
choose_launcher() {
  local library plugins
  case ${MICA_LAUNCHER:-} in
    mpirun) echo mpirun; return ;;
    srun | "") ;;
    *) echo "mica: error: MICA_LAUNCHER is '$MICA_LAUNCHER', expected srun or mpirun" >&2; return 2 ;;
  esac
  if [[ -n "${SLURM_MPI_TYPE:-}" ]]; then   # srun's own variable
    echo "srun $SLURM_MPI_TYPE"
    return
  fi
  library=$("$bin/mica-train" --version) || { echo "mica: error: $bin/mica-train does not run here: set MICA_BIN to its folder" >&2; return 2; }
  plugins=$(srun --mpi=list 2>&1 | tr -s ' \t:,' '\n') || true
  has() { grep -qx -e "$1" <<<"$plugins"; }
  case $library in
    *"Open MPI"*)
      if has pmix; then
        echo "srun pmix"
      elif [[ -z "${MICA_LAUNCHER:-}" ]] && command -v mpirun >/dev/null; then
        echo "mica: srun has no plugin pmix, which Open MPI needs: starting with mpirun" >&2
        echo mpirun
      else
        echo "mica: error: srun has no plugin pmix, which Open MPI needs: put mpirun on PATH and set MICA_LAUNCHER=mpirun, or set SLURM_MPI_TYPE" \
             "to a plugin that your Open MPI was built for (available: $(srun --mpi=list 2>&1 | xargs))" >&2
        return 2
      fi ;;
    *Cray* | *CRAY*) echo "srun cray_shasta" ;;
    *)
      if has pmi2; then echo "srun pmi2"
      elif has pmix; then echo "srun pmix"
      else
        echo "mica: error: srun has neither pmi2 nor pmix, which MPICH and libraries derived from it need: set SLURM_MPI_TYPE to a plugin" \
             "(available: $(srun --mpi=list 2>&1 | xargs))" >&2
        return 2
      fi ;;
  esac
}

# Whether each node of the job can still start a process. After sbatch --export=NONE, srun passes no PATH on.
all_nodes_answer() {
  timeout -k 5 60 srun --mpi=none --export=ALL --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" \
    --ntasks-per-node=1 --cpus-per-task=1 /bin/true </dev/null >/dev/null 2>&1
}

# A cancelled run also saves and ends with status 75. One task of an array has the array's id, which means all tasks to scontrol.
queue_again() {
  local job=$SLURM_JOB_ID state=
  [[ -z "${SLURM_ARRAY_TASK_ID:-}" ]] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
  try_times 12 learn_state || true
  case $state in
    *JobState=RUNNING* | *Reason=TimeLimit*) ;;
    *JobState=PENDING*) return ;;   # Slurm has requeued it already
    "")   # it may have been cancelled
      echo "mica: $1; scontrol does not tell this job's state, so it is not queued again here: submit the same command to continue the run" >&2
      return ;;
    *)
      echo "mica: $1; Slurm ends this job, so it is not queued again here (after scancel, submit the same command to continue the run)" >&2
      return ;;
  esac
  echo "mica: $1: the job is queued again, and the run resumes from its newest checkpoint" >&2 || true   # its disk may be full
  try_times 3 scontrol requeue "$job" ||
    echo "mica: the job cannot be queued again here: submit the same command to continue the run" >&2
}
learn_state() { state=$(scontrol show job "$job"); }
# try_times N COMMAND...: with 5 s between, since Slurm's controller may be too busy to answer.
try_times() {
  local attempt
  for ((attempt = 1; attempt <= $1; ++attempt)); do
    ! "${@:2}" || return 0
    [[ $attempt -eq $1 ]] || sleep 5
  done
  return 1
}

# Cores of a task, as Open MPI counts them. Slurm's CPUs are hardware threads where a node has more CPUs than cores, unless the job asked for
# one thread a core.
cores_per_task() {
  local cpus=${SLURM_CPUS_PER_TASK:-1} node all sockets cores
  node=$(scontrol show node "${SLURMD_NODENAME:-}" 2>/dev/null) || true
  field() { grep -o "\b$1=[0-9]*" <<<"$node" | head -n 1 | cut -d = -f 2; }
  all=$(field CPUTot) sockets=$(field Sockets) cores=$(field CoresPerSocket)
  cores=$((${sockets:-0} * ${cores:-0}))
  if [[ $cores -gt 0 && ${all:-0} -gt $cores && ${SLURM_HINT:-} != nomultithread && ${SLURM_THREADS_PER_CORE:-} != 1 ]]; then
    cpus=$((cpus / (all / cores)))
  fi
  echo $((cpus > 0 ? cpus : 1))
}

run_job() {
  local device=$1 bin launcher binding command attempt step status tasks is_asked=false what="saved and stopped"
  shift
  if [[ ${SLURM_HET_SIZE:-1} -gt 1 ]]; then   # srun would start the first component alone, with one thread a rank
    echo "mica: error: this is a heterogeneous job of $SLURM_HET_SIZE components: ask for all nodes in one component, or write a batch script" \
         "with an srun --het-group=0-$((SLURM_HET_SIZE - 1)) line of your own (docs/clusters.md)" >&2
    exit 2
  fi
  # Before the time limit Slurm signals this script, because it does not know mpirun's ranks. If the ranks also get a signal from Slurm
  # itself (scancel, preemption), they treat both as one request. $! is known as soon as the step runs.
  trap 'is_asked=true; [[ -z "${!:-}" ]] || kill -USR1 "$!" || true' USR1 USR2 TERM
  if [[ $device == cuda ]]; then bin=${MICA_BIN:-build/cuda/bin}; else bin=${MICA_BIN:-build/release/bin}; fi
  [[ -n "${MICA_BIN:-}" || -x "$bin/mica-train" ]] || bin=$launch/../../../bin   # installed: PREFIX/share/mica/launch
  [[ -x "$bin/mica-train" ]] || { echo "mica: error: no mica-train in $bin: set MICA_BIN to its folder" >&2; exit 2; }
  launcher=$(choose_launcher) || $is_asked || exit 2
  export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
  if [[ $device == cuda ]]; then
    export NCCL_CROSS_NIC=${NCCL_CROSS_NIC:-1}
    # All of a node's GPUs stay visible to its ranks, as NCCL needs for its fastest paths; Mica chooses by local rank.
    binding=(--gpu-bind=none --cpu-bind=cores)
  else
    export OMP_PLACES=cores
    binding=(--cpu-bind=cores)
  fi
  if [[ $launcher == mpirun ]]; then
    export SLURM_EXPORT_ENV=ALL   # for mpirun's own srun
    unset HOSTFILE   # perhaps of the shell that submitted: the hosts are the job's
    tasks=${SLURM_NTASKS:-$SLURM_JOB_NUM_NODES}   # not set where neither tasks nor tasks a node were asked for
    export RANKS=$tasks THREADS=$OMP_NUM_THREADS CORES_PER_RANK MICA_BIN=$bin GPUS_PER_NODE=$((tasks / SLURM_JOB_NUM_NODES))
    CORES_PER_RANK=$(cores_per_task)
    command=("$launch/mpirun-${device/cuda/gpu}.sh" "$@")
  else
    # After a rank's death the others may save for ten minutes. If they wait in MPI for ever, srun ends them after eleven.
    command=(srun --mpi="${launcher#srun }" --export=ALL --wait=660 --cpus-per-task="$OMP_NUM_THREADS" "${binding[@]}"
             "$bin/mica-train" "$1" --mesh.device="$device" "${@:2}")
  fi
  for attempt in first second; do
    if $is_asked; then   # there is no step to tell of it
      status=75 what="stopped before the run began"
      break
    fi
    "${command[@]}" &
    step=$!
    while kill -0 "$step" 2>/dev/null; do wait "$step" || true; done   # a signal also ends wait
    status=0
    wait "$step" || status=$?   # bash remembers it
    # Open MPI's MPI_Init crashes now and then under srun (open-mpi/ompi issue 12495). The job may have waited for days.
    if [[ $attempt == second || $status -ne 139 || $SECONDS -ge 300 ]] || ! all_nodes_answer; then break; fi
    echo "mica: a rank crashed in the job's first five minutes, as happens in MPI_Init: starting once more" >&2 || true
  done
  case $status in
    0 | 2) ;;   # done; or a mistake in the config or the launch, which would fail again
    75) queue_again "$what" ;;
    *) all_nodes_answer || queue_again "status $status, and not all nodes answer" ;;
  esac
  exit "$status"
}
