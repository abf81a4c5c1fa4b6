#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the Debian package of a build, installs it on a bare Debian, and trains there as the quickstart does. Some three minutes.
#   scripts/check-deb.sh [BUILD]      default build/release; built with Debian's MPI and HDF5
# Needs root and debootstrap (apt-get install debootstrap).
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/release}
[[ -x $build/bin/mica-train ]] || { echo "mica: error: $build/bin/mica-train is not there: cmake --preset release && cmake --build --preset release" >&2; exit 2; }
# shellcheck source=scripts/bare_debian.sh
source scripts/bare_debian.sh
make_bare_debian
rm -f "$build"/mica*.deb
(cd "$build" && cpack -G DEB)
in_bare_debian packages="$(realpath "$build")" -- bash -euc '
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends /mnt/packages/mica_*.deb >/dev/null
  cd /tmp
  mica-train --version
  source /usr/share/mica/environment.sh
  mica-tokenize --quiet --vocab=bytes --out=corpus.h5 --val-fraction=0.1 /usr/share/common-licenses/*
  mpirun -np 4 mica-train /usr/share/mica/configs/gpt2-tiny-text.cfg --data.train=corpus.train.h5 --data.val=corpus.val.h5 --run.dir=run
  mica-inspect verify run
  losses=$(sed -n "s/.*\"event\":\"step\".*\"loss\":\([^,]*\).*/\1/p" run/metrics.jsonl)
  first=$(head -n 1 <<<"$losses") last=$(tail -n 1 <<<"$losses")
  echo "loss $first -> $last"
  awk -v first="$first" -v last="$last" "BEGIN { exit !(first > 5 && last < 3) }" || { echo "the loss did not fall" >&2; exit 1; }
  apt-get purge -y -qq mica >/dev/null
  [[ ! -e /usr/share/mica ]] || { echo "files are left after removing the package: $(find /usr/share/mica)" >&2; exit 1; }
'
echo "the package $(ls "$build"/mica_*.deb) installs, trains and can be removed"
