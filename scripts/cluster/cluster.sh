#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A cluster on one machine: each node is a namespace with its own network, host name, processes and /dev/shm. Between them there is
# real TCP and, with --slurm, a real Slurm. Needs root, or user namespaces (Slurm: root). More in README.md.
#   cluster.sh with [OPTIONS] -- COMMAND...   starts a cluster, runs the command on its head, ends the cluster with the command
#   cluster.sh up [--name=NAME] [OPTIONS]     starts a cluster that runs until: cluster.sh down [--name=NAME]
#     --nodes=N       node0 to node(N-1); default 2
#     --cpus=N        CPUs of a node, for Slurm; default 2
#     --rate=RATE     of every link in each direction (200mbit); default: as fast as the machine
#     --delay-us=N    one-way delay between a node and the switch; twice that between nodes
#     --slurm         slurmctld on the head, slurmd on each node
# On the head; or outside, for a cluster that is up (put --name=NAME first if it has a name):
#   cluster.sh run COMMAND...                 on the head, where mpirun, sbatch, squeue and scontrol work
#   cluster.sh on NODE COMMAND...             on a node
#   cluster.sh mpirun RANKS_PER_NODE COMMAND...
#   cluster.sh rate RATE|off [NODE]           of every link, or of one node's; may be changed at any time
#   cluster.sh cut NODE, mend NODE            disconnects the node; reconnects it
#   cluster.sh crash NODE, boot NODE          as after a power cut; starts it again (with its slurmd)
#   cluster.sh counters                       bytes that each node's interface has sent and received, and frames sent
#   cluster.sh status                         nodes, links, Slurm's view
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/cluster/head.sh
source "$here/head.sh"
# shellcheck source=scripts/cluster/slurm.sh
source "$here/slurm.sh"

usage() { sed -n '3,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$here/cluster.sh"; }

# Checks that this machine has everything a cluster needs, before anything is started.
check_machine() {
  local tool
  for tool in ip tc unshare nsenter setpriv mount; do
    command -v "$tool" >/dev/null || die "$tool is missing: scripts/install-packages.sh --cluster installs it"
  done
  if [[ -n "$slurm" ]]; then
    for tool in slurmctld slurmd sbatch srun munged munge; do
      command -v "$tool" >/dev/null || die "--slurm: $tool is missing: scripts/install-packages.sh --cluster installs it"
    done
    [[ $(id -u) -eq 0 ]] || die "--slurm needs root: Slurm was not tested inside a user namespace"
  fi
  if [[ -n "$delay_us" ]]; then
    [[ -w /dev/net/tun ]] || die "--delay-us needs /dev/net/tun, which is missing or cannot be opened for writing here"
    command -v python3 >/dev/null || die "--delay-us needs python3"
  fi
  local why
  why=$("${namespaces[@]}" ip link add name switch type bridge 2>&1) ||
    die "no namespaces with a network bridge can be made here (${why##*$'\n'}): run as root, in a container with CAP_SYS_ADMIN and" \
        "CAP_NET_ADMIN, or where user namespaces are allowed (sysctl user.max_user_namespaces)"
}

parse_options() {
  nodes=2 cpus=2 rate="" delay_us="" slurm=""
  while [[ $# -gt 0 ]]; do
    case $1 in
      --nodes=*) nodes=${1#*=} ;;
      --cpus=*) cpus=${1#*=} ;;
      --rate=*) rate=${1#*=} ;;
      --delay-us=*) delay_us=${1#*=} ;;
      --slurm) slurm=yes ;;
      --) shift; break ;;
      *) die "unknown option '$1': cluster.sh --help lists them" ;;
    esac
    shift
  done
  command=("$@")
  [[ "$nodes" =~ ^[1-9][0-9]?$ ]] || die "--nodes=$nodes: expected 1 to 99"
  [[ "$cpus" =~ ^[1-9][0-9]*$ ]] || die "--cpus=$cpus: expected an integer from 1"
  [[ "$delay_us" =~ ^[0-9]*$ ]] || die "--delay-us=$delay_us: expected microseconds"
  check_machine
}

# The head is the first process of a PID namespace: when it ends, so do all processes of the cluster, its networks and its mounts.
namespaces=(unshare --pid --fork --kill-child --net --uts --ipc --mount --propagation private --mount-proc)
[[ $(id -u) -eq 0 ]] || namespaces+=(--user --map-root-user)
start_head() { "${namespaces[@]}" "$here/cluster.sh" --head "$nodes" "$cpus" "$rate" "$delay_us" "$slurm" "$@"; }
# The head's pid, as seen from outside. $1: the pid of its unshare.
head_of() { tr -d ' ' <"/proc/$1/task/$1/children"; }

with() {
  parse_options "$@"
  [[ ${#command[@]} -gt 0 ]] || die "with: no command"
  # The head must end when this script ends, in any way. A shell's background processes ignore Ctrl-C; the command must not.
  exec 3<&0
  env --default-signal=INT,QUIT setpriv --pdeathsig KILL "${namespaces[@]}" \
    "$here/cluster.sh" --head "$nodes" "$cpus" "$rate" "$delay_us" "$slurm" "${command[@]}" <&3 3<&- &
  local child=$! status=0
  trap ': the command gets it, too' INT
  trap 'kill -KILL "$child"; exit 143' TERM HUP
  while kill -0 "$child" 2>/dev/null; do wait "$child" || true; done   # a signal also ends wait
  wait "$child" || status=$?   # bash remembers it
  return "$status"
}

# Each cluster that is up has a folder with the pid of the head's unshare and its start time (pids are reused).
folder_of() { echo "${TMPDIR:-/tmp}/mica-cluster-$(id -u)/$1"; }
started_at() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }
# Sets `unshared`. A killed process may be a zombie (state Z) for a while.
is_up() {
  local since
  { read -r unshared since <"$(folder_of "$1")/head"; } 2>/dev/null && [[ "$(started_at "$unshared")" == "$since" ]] &&
    ! grep -q '^State:.Z' "/proc/$unshared/status" 2>/dev/null
}

up() {
  parse_options "$@"
  [[ ${#command[@]} -eq 0 ]] || die "up takes no command: use cluster.sh run COMMAND when it is up"
  local folder unshared
  folder=$(folder_of "$name")
  mkdir -p "$(dirname "$folder")"
  exec 4>"$folder.lock"
  flock -n 4 || die "a cluster '$name' is being started right now"
  if is_up "$name"; then die "a cluster '$name' is up already: cluster.sh --name=$name down ends it; another --name starts one beside it"; fi
  rm -rf "$folder"   # left by a head that was killed
  mkdir "$folder"
  env --default-signal=INT,QUIT setsid "${namespaces[@]}" "$here/cluster.sh" --head "$nodes" "$cpus" "$rate" "$delay_us" "$slurm" \
    sh -c ": >'$folder/ready'; exec sleep infinity" </dev/null >"$folder/log" 2>&1 4>&- &
  unshared=$!
  echo "$unshared $(started_at "$unshared")" >"$folder/head"
  trap 'kill -KILL "$unshared" 2>/dev/null; rm -rf "$folder"' EXIT
  until [[ -e "$folder/ready" ]]; do
    kill -0 "$unshared" 2>/dev/null || { cat "$folder/log" >&2; die "the cluster did not start"; }
    sleep 0.05
  done
  trap - EXIT
  disown "$unshared"
  echo "up: $nodes nodes${slurm:+ and Slurm}; cluster.sh down ends it"
}

down() {
  local unshared
  is_up "$name" || die "no cluster '$name' is up"
  kill -KILL "$unshared"   # the head is killed with it, and the kernel ends everything inside
  while is_up "$name"; do sleep 0.02; done
  rm -rf "$(folder_of "$name")" "$(folder_of "$name").lock"
  rmdir "$(dirname "$(folder_of "$name")")" 2>/dev/null || true   # other clusters may be up
}

# Runs a command on the head of a cluster that is up; the command ends when this script ends.
enter() {
  local unshared user=()
  is_up "$name" || die "no cluster '$name' is up: cluster.sh up starts one"
  [[ -e "$(folder_of "$name")/ready" ]] || die "cluster '$name' is still starting"
  [[ $(id -u) -eq 0 ]] || user=(--user --preserve-credentials)
  exec nsenter -t "$(head_of "$unshared")" "${user[@]}" --mount --uts --ipc --net --pid --wdns="$PWD" \
    setpriv --pdeathsig KILL "$here/cluster.sh" "$@"
}

name=default
if [[ "${1:-}" == --name=* ]]; then
  name=${1#*=}
  shift
fi
what=${1:-}
shift || true
if [[ "$what" =~ ^(up|down)$ && "${1:-}" == --name=* ]]; then
  name=${1#*=}
  shift
fi
[[ "$name" =~ ^[A-Za-z0-9_.-]+$ && "$name" != .* ]] || die "--name=$name: expected letters, digits, - and _"
case $what in
  --head) start_cluster "$@" ;;
  -h | --help) usage ;;
  with) with "$@" ;;
  up) up "$@" ;;
  down) down ;;
  run | on | mpirun | rate | cut | mend | crash | boot | counters | status)
    if is_inside; then "on_head_$what" "$@"; else enter "$what" "$@"; fi ;;
  *) usage >&2; exit 2 ;;
esac
