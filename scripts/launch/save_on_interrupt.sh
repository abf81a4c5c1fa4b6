# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by the mpirun scripts. expect_number and expect_hostfile check their variables;
# save_on_interrupt MPIRUN ARGUMENTS... runs mpirun and ends with its status.

# expect_number NAME VALUE: a whole number above 0, or the script ends.
expect_number() {
  [[ "$2" =~ ^[1-9][0-9]*$ ]] || { echo "mica: error: $1 is '$2', expected a whole number above 0" >&2; exit 2; }
}

# HOSTFILE names hosts, or the script ends. It becomes a path with a slash.
expect_hostfile() {
  [[ "$HOSTFILE" == /* ]] || HOSTFILE=./$HOSTFILE   # awk and grep take other names for something else if they have a = or begin with a -
  [[ -f "$HOSTFILE" && -r "$HOSTFILE" ]] || { echo "mica: error: cannot read HOSTFILE=$HOSTFILE" >&2; exit 2; }
  grep -qv '^[[:space:]]*\(#\|$\)' "$HOSTFILE" || { echo "mica: error: HOSTFILE=$HOSTFILE names no hosts" >&2; exit 2; }
}

# mpirun passes Ctrl-C and SIGTERM on to the ranks and kills them 2 s later, in the middle of a step or a save. (A longer limit,
# odls_base_sigkill_timeout, also delays the end of every run that fails.) It only forwards SIGUSR1: the ranks save and end with
# status 75. A second Ctrl-C or SIGTERM ends the run at once.
# Ranks on other hosts get the variables of Mica and of the libraries below it, of which mpirun passes none on over ssh.
# With the settings below, mpirun notices a crashed host within half a minute and ends the run; by default it takes hours.
save_on_interrupt() {
  local status=0 name variables=()
  export OMPI_MCA_oob_tcp_keepalive_time=${OMPI_MCA_oob_tcp_keepalive_time:-10} OMPI_MCA_oob_tcp_keepalive_intvl=${OMPI_MCA_oob_tcp_keepalive_intvl:-5} \
         OMPI_MCA_oob_tcp_keepalive_probes=${OMPI_MCA_oob_tcp_keepalive_probes:-4}
  for name in $(compgen -e | grep -E '^(MICA|OMP|GOMP|NCCL|UCX|FI|CUDA|HDF5|ONEDNN|DNNL|OPENBLAS|MALLOC)_|^LD_LIBRARY_PATH$'); do
    [[ $name == CUDA_VISIBLE_DEVICES ]] || variables+=(-x "$name")   # a scheduler chooses the GPUs of each node
  done
  # Set before mpirun starts, since signals may come as soon as it runs. Then $! is mpirun.
  trap '[[ -n "${!:-}" ]] || exit 130   # mpirun does not run yet
        trap "kill -TERM $! || true" INT TERM
        kill -USR1 "$!" || true
        (echo "saving; once more to quit without saving" >&2) || true   # in a subshell, since a terminal or tee may be gone
        ' INT TERM HUP
  trap '[[ -z "${!:-}" ]] || kill -USR1 "$!" || true' USR1 USR2
  set -m   # mpirun gets its own process group, so that a terminal's Ctrl-C only reaches this script
  "$1" "${variables[@]}" "${@:2}" </dev/null &
  while kill -0 "$!" 2>/dev/null; do wait "$!" || true; done   # a signal also ends wait
  status=0
  wait "$!" || status=$?   # bash remembers it
  return "$status"
}
