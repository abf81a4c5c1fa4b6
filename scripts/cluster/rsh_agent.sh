#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# mpirun calls this instead of ssh: rsh_agent.sh [OPTIONS] NODE WORDS... As with ssh, a shell on the node parses the words, without
# the caller's environment.
set -euo pipefail
while [[ "${1:-}" == -* ]]; do shift; done
node=$1
shift
MICA_CLUSTER_FOLDER=$HOME exec "$(dirname "${BASH_SOURCE[0]}")/cluster.sh" on "$node" \
  env -i PATH="$PATH" HOME="$HOME" LANG="${LANG:-C.UTF-8}" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 bash -c "$*"
