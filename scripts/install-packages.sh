#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages needed to build Mica; only missing ones, as root or with sudo. Debian 12, Ubuntu 24.04 or newer.
#   scripts/install-packages.sh          to build the programs
#   scripts/install-packages.sh --tests  and the tests
#   scripts/install-packages.sh --cluster  and the emulated cluster (scripts/cluster), which some of the tests run on
#   scripts/install-packages.sh --fuzz   and the fuzzers
#   scripts/install-packages.sh --mpich  and with MPICH beside Open MPI
set -euo pipefail

browser=chromium-headless-shell
packages=(build-essential cmake ninja-build file openmpi-bin libopenmpi-dev libhdf5-dev libboost-program-options-dev
          libdnnl-dev libopenblas-dev libfmt-dev nlohmann-json3-dev libsentencepiece-dev)
for flag in "$@"; do
  case $flag in
    --tests)
      packages+=(git libgtest-dev libgmock-dev python3 python3-h5py hdf5-tools e2fsprogs clang-format-14 clang-tidy-16
                 faketime iproute2 "$browser") ;;
    --cluster) packages+=(iproute2 util-linux slurm-wlm munge python3) ;;
    --fuzz) packages+=(clang-16 libclang-rt-16-dev) ;;
    --mpich) packages+=(mpich libmpich-dev) ;;
    *)
      echo "mica: error: unknown flag $flag, expected --tests, --cluster, --fuzz or --mpich" >&2
      exit 2 ;;
  esac
done

check_cmake() {   # CMake itself says only that it cannot read CMakePresets.json
  local version
  version=$(cmake --version | sed -n '1s/.*version //p')
  if ! printf '3.25\n%s\n' "$version" | sort -V -C; then
    echo "mica: error: $(command -v cmake) is version $version, and Mica needs 3.25, which Debian 12 and Ubuntu 24.04 have: use scripts/build-without-root.sh, which brings one, or put a newer cmake first on PATH" >&2
    exit 2
  fi
}

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "install ok installed" || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  echo "packages: all ${#packages[@]} are installed"
  check_cmake
  exit 0
fi
echo "packages: installing ${missing[*]}"
as_root=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo >/dev/null || { echo "mica: error: ${missing[*]} are not installed, and this user is not root and has no sudo: ask your administrator to install them" >&2; exit 2; }
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
if [[ " ${missing[*]} " == *" $browser "* ]] && ! apt-cache show "$browser" >/dev/null 2>&1; then   # Ubuntu has none
  echo "packages: there is no $browser here: the test of mica-report's page is left out, unless another Chromium is installed"
  mapfile -t missing < <(printf '%s\n' "${missing[@]}" | grep -vx "$browser")
fi
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
check_cmake
