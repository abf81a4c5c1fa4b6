# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2034  # slurm.sh reads them
# Sourced by cluster.sh: the part that runs on the head of a cluster, inside its namespaces. /run is a tmpfs there, with the cluster's
# state.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
state=/run/mica-cluster
subnet=10.77.0

die() {
  echo "mica: error: cluster: $*" >&2
  exit 2
}

is_inside() { [[ -e $state/nodes ]]; }
check_node() {
  [[ -n "${1:-}" ]] || die "which node? $(xargs <$state/nodes)"
  grep -qx -e "$1" $state/nodes || die "no node '$1': there are $(xargs <$state/nodes)"
}
index_of() { echo "${1#node}"; }
# The first process of a node.
init_of() {
  check_node "$1"
  cat "$state/$1.pid" 2>/dev/null || die "$1 is down: cluster.sh boot $1"
}
in_network_of() { nsenter -t "$(init_of "$1")" --net -- "${@:2}"; }

# Settings that a site's administrator would make for all users. srun has no --mca options, so they are in the environment.
set_site() {
  # shellcheck source=scripts/environment.sh
  source "$here/../environment.sh"
  export MICA_CLUSTER=$here/cluster.sh
  export OMPI_MCA_plm_rsh_agent=$here/rsh_agent.sh OMPI_MCA_plm_rsh_no_tree_spawn=1
  export OMPI_MCA_oob_tcp_if_include=$subnet.0/24 OMPI_MCA_btl_tcp_if_include=$subnet.0/24 OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp
  export OMPI_MCA_orte_tmpdir_base=/dev/shm   # separate on each node; /tmp is shared
  [[ ! -e $state/slurm/slurm.conf ]] || export SLURM_CONF=$state/slurm/slurm.conf
}

# start_cluster NODES CPUS RATE DELAY_US SLURM COMMAND...: the first process of the head.
start_cluster() {
  local nodes=$1 cpus=$2 rate=$3 delay_us=$4 slurm=$5 node i status=0
  shift 5
  mount -t tmpfs -o mode=755 tmpfs /run
  mount -t tmpfs -o mode=1777 tmpfs /dev/shm
  mkdir -p $state/sys
  mount -t sysfs sysfs $state/sys   # with the devices of this network namespace
  hostname head
  {
    echo "127.0.0.1 localhost"
    echo "$subnet.1 head"
    for ((i = 0; i < nodes; i++)); do echo "$subnet.$((10 + i)) node$i"; done
  } >$state/hosts
  mount --bind $state/hosts /etc/hosts
  ip link set lo up
  ip link add name switch type bridge forward_delay 0
  ip addr add $subnet.1/24 dev switch
  ip link set switch up
  echo "$delay_us" >$state/delay_us
  echo off >$state/rate
  for ((i = 0; i < nodes; i++)); do echo "node$i"; done >$state/nodes
  [[ -z "$slurm" ]] || write_slurm_conf "$nodes" "$cpus"
  set_site
  [[ -z "$slurm" ]] || start_slurmctld
  for ((i = 0; i < nodes; i++)); do on_head_boot "node$i"; done
  if [[ -n "$rate" ]]; then on_head_rate "$rate"; fi
  if [[ -n "$slurm" ]]; then wait_for_slurm "$nodes"; fi
  trap ': the command gets it, too' INT
  "$@" || status=$?
  exit "$status"   # the kernel kills what still runs in the cluster
}

on_head_boot() {
  local node=$1 i unshared pid delay_us
  check_node "$node"
  [[ ! -e "$state/$node.pid" ]] || die "$node is up"
  i=$(index_of "$node")
  # The loop reaps orphaned processes, as an init does.
  # shellcheck disable=SC2016  # of the inner shell
  setsid unshare --pid --fork --kill-child --net --uts --ipc --mount --propagation private --mount-proc bash -c '
    set -e; hostname "$1"; mount -t tmpfs -o mode=1777 tmpfs /dev/shm; mount -t sysfs sysfs "$3"; : >"$2"
    sleep infinity & while :; do wait $! || true; done
    ' "init-of-$node" "$node" "$state/$node.ready" "$state/sys" </dev/null >"$state/$node.log" 2>&1 &
  unshared=$!
  until [[ -e "$state/$node.ready" ]]; do
    kill -0 $unshared 2>/dev/null || die "$node did not start: $(cat "$state/$node.log")"
    sleep 0.02
  done
  pid=$(head_of $unshared)
  echo "$unshared" >"$state/$node.unshare"
  echo "$pid" >"$state/$node.pid"
  delay_us=$(cat $state/delay_us)
  if [[ -z "$delay_us" ]]; then
    ip link add "port$i" type veth peer name eth0 netns "$pid"
  else
    setsid "$here/delay_cable.py" "port$i" "cable$i" "$delay_us" </dev/null >"$state/$node.cable" 2>&1 &
    echo $! >"$state/$node.cable.pid"
    until ip link show "cable$i" >/dev/null 2>&1; do
      kill -0 $! 2>/dev/null || die "the cable of $node: $(cat "$state/$node.cable")"
      sleep 0.02
    done
    ip link set "cable$i" netns "$pid" name eth0
  fi
  ip link set "port$i" master switch up
  # The same address after a reboot: others remember it.
  in_network_of "$node" ip link set eth0 address "$(printf '02:00:0a:4d:00:%02x' $((10 + i)))"
  in_network_of "$node" ip addr add "$subnet.$((10 + i))/24" dev eth0
  in_network_of "$node" ip link set lo up
  in_network_of "$node" ip link set eth0 up
  keep_order "$node"
  shape "$node" "$(cat $state/rate)"
  if [[ -e $state/slurm/slurm.conf ]]; then start_slurmd "$node"; fi
}

# keep_order NODE: at each end of its cable, one CPU receives all packets. If several do, packets overtake each other, and TCP takes them
# for lost. The file holds a mask of CPUs, of at most 32 without commas.
keep_order() {
  local i mask folder=$state/sys/class/net
  i=$(index_of "$1")
  mask=$(printf '%x' $((1 << (i % $(nproc) % 32))))
  echo "$mask" >"$folder/port$i/queues/rx-0/rps_cpus"
  nsenter -t "$(init_of "$1")" --mount --net tee "$folder/eth0/queues/rx-0/rps_cpus" <<<"$mask" >/dev/null
}

# Disconnects it first, so that no connection is closed properly.
on_head_crash() {
  local node=$1 pid
  pid=$(init_of "$node")
  ip link set "port$(index_of "$node")" down
  kill -KILL "$pid"
  while [[ -e /proc/$(cat "$state/$node.unshare") ]] && kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
  if [[ -e "$state/$node.cable.pid" ]]; then kill -KILL "$(cat "$state/$node.cable.pid")" || true; fi
  ip link del "port$(index_of "$node")" 2>/dev/null || true
  rm -f "$state/$node."*
}

on_head_cut() { init_of "$1" >/dev/null; ip link set "port$(index_of "$1")" down; }
on_head_mend() { init_of "$1" >/dev/null; ip link set "port$(index_of "$1")" up; }

# burst_of RATE: 4 ms, and at least a frame of 64 KiB. With less than some frames a link's speed differs by a third from one job to the next.
burst_of() {
  local number=${1%%[!0-9]*} kbit=0
  case $1 in
    [0-9]*gbit) kbit=$((number * 1000000)) ;;
    [0-9]*mbit) kbit=$((number * 1000)) ;;
  esac
  echo "$((kbit / 2000 > 64 ? kbit / 2000 : 64))kb"
}

# shape NODE RATE|off: both ends of its cable.
shape() {
  local node=$1 rate=$2 port burst
  port=port$(index_of "$node")
  if [[ "$rate" == off ]]; then
    tc qdisc del dev "$port" root 2>/dev/null || true
    in_network_of "$node" tc qdisc del dev eth0 root 2>/dev/null || true
  else
    burst=$(burst_of "$rate")
    tc qdisc replace dev "$port" root tbf rate "$rate" burst "$burst" latency 20ms
    in_network_of "$node" tc qdisc replace dev eth0 root tbf rate "$rate" burst "$burst" latency 20ms
  fi
}

on_head_rate() {
  local node only=${2:-}
  [[ -n "${1:-}" ]] || die "rate: how much? 200mbit, for example, or off"
  [[ -z "$only" ]] || init_of "$only" >/dev/null
  while read -r node; do
    [[ ! -e "$state/$node.pid" || "$node" != "${only:-$node}" ]] || shape "$node" "$1" || die "tc takes no rate '$1': 200mbit, for example, or off"
  done <$state/nodes
  [[ -n "$only" ]] || echo "$1" >$state/rate
}

# node0 sent BYTES received BYTES
on_head_counters() {
  local node
  while read -r node; do
    [[ ! -e "$state/$node.pid" ]] || in_network_of "$node" ip -s -j link show eth0 |
      sed "s/.*\"rx\":{\"bytes\":\([0-9]*\).*\"tx\":{\"bytes\":\([0-9]*\),\"packets\":\([0-9]*\).*/$node sent \2 received \1 frames-sent \3/"
  done <$state/nodes
}

on_head_status() {
  local node
  while read -r node; do
    if [[ -e "$state/$node.pid" ]]; then echo "$node up"; else echo "$node down"; fi
  done <$state/nodes
  ip -br link show master switch
  [[ ! -e $state/slurm/slurm.conf ]] || { set_site; sinfo; squeue; }
}

on_head_run() {
  [[ $# -gt 0 ]] || die "run: no command"
  set_site
  exec "$@"
}

on_head_on() {
  local pid
  pid=$(init_of "${1:-}")
  [[ $# -gt 1 ]] || die "on: no command"
  set_site
  exec nsenter -t "$pid" --mount --uts --ipc --net --pid --wdns="${MICA_CLUSTER_FOLDER:-$PWD}" -- "${@:2}"
}

on_head_mpirun() {
  local ranks=${1:-} node hosts=""
  [[ "$ranks" =~ ^[1-9][0-9]*$ && $# -gt 1 ]] || die "mpirun: expected RANKS_PER_NODE COMMAND..."
  while read -r node; do hosts+=${hosts:+,}$node:$ranks; done <$state/nodes
  set_site
  # As users have to: mpirun passes on only the variables named with -x.
  local variable exported=()
  for variable in $(compgen -e | grep -E '^(MICA|OMP)_'); do exported+=(-x "$variable"); done
  exec mpirun --host "$hosts" --map-by "ppr:$ranks:node" --bind-to none "${exported[@]}" "${@:2}"
}
