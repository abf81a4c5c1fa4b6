# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2154  # head.sh sets them
# Sourced by head.sh: a real Slurm on the nodes, with its own key and sockets; the machine's Slurm and munge are not used.

# write_slurm_conf NODES CPUS. Timeouts are short, since tests lose nodes on purpose: a requeued job may start after cred_expire + 1 s,
# a node is down after SlurmdTimeout. Partition "urgent" preempts jobs of "main", which get SIGTERM and GraceTime, and are requeued.
write_slurm_conf() {
  local nodes=$1 cpus=$2 root=$state/slurm i
  mkdir -p "$root"/{state,log,run}
  {
    cat <<CONF
ClusterName=emulated
SlurmctldHost=head($subnet.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket=$root/run/munge.socket,cred_expire=5
StateSaveLocation=$root/state
SlurmdSpoolDir=$root/state/spool.%n
TmpFS=$root/state/tmp.%n
SlurmctldPidFile=$root/run/slurmctld.pid
SlurmdPidFile=$root/run/slurmd.%n.pid
SlurmctldLogFile=$root/log/slurmctld.log
SlurmdLogFile=$root/log/%n.log
SlurmctldDebug=info
SlurmdDebug=info
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
MpiDefault=none
PropagateResourceLimits=NONE
ReturnToService=2
JobRequeue=1
KillWait=5
SlurmctldTimeout=30
SlurmdTimeout=15
MessageTimeout=10
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
CONF
    for ((i = 0; i < nodes; i++)); do
      echo "NodeName=node$i NodeHostname=node$i NodeAddr=$subnet.$((10 + i)) CPUs=$cpus RealMemory=1000 State=UNKNOWN"
    done
    echo "PartitionName=main Nodes=node[0-$((nodes - 1))] Default=YES State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=60"
    echo "PartitionName=urgent Nodes=node[0-$((nodes - 1))] State=UP PriorityTier=10 PreemptMode=OFF"
  } >"$root/slurm.conf"
}

start_slurmctld() {
  local root=$state/slurm
  (umask 077 && head -c 1024 /dev/urandom >"$root/munge.key")
  munged --force --key-file "$root/munge.key" --socket "$root/run/munge.socket" --pid-file "$root/run/munged.pid" \
    --log-file "$root/log/munged.log" --seed-file "$root/run/munged.seed" >"$root/log/munged.start" 2>&1 ||
    die "munged does not start: $(cat "$root/log/munged.start")"
  slurmctld || die "slurmctld does not start: $(tail -n 5 "$root/log/slurmctld.log")"
}

# A real node would have lost its /tmp, too: files that a job left there would be in its way when it comes back.
start_slurmd() {
  local node=$1 root=$state/slurm
  rm -rf "$root/state/tmp.$node" "$root/state/spool.$node"
  mkdir -p "$root/state/tmp.$node" "$root/state/spool.$node"
  (on_head_on "$node" slurmd -N "$node") || die "slurmd does not start on $node: $(tail -n 5 "$root/log/$node.log")"
}

wait_for_slurm() {
  local nodes=$1 tries
  for ((tries = 0; tries < 300; tries++)); do
    [[ "$(sinfo -h -p main -o '%t %D' 2>/dev/null)" != "idle $nodes" ]] || return 0
    sleep 0.2
  done
  sinfo >&2 || true
  tail -n 20 "$state"/slurm/log/*.log >&2
  die "Slurm's nodes are not idle after 60 s"
}
