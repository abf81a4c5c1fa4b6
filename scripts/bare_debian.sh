# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by scripts that test Mica on a minimal Debian: this machine's release, made once by debootstrap in build/bare-debian/base.
# Needs root, debootstrap and access to Debian's packages; mounts end with the shell that made them.
bare_debian=$PWD/build/bare-debian

make_bare_debian() {
  [[ $(id -u) -eq 0 ]] || { echo "mica: error: debootstrap needs root: sudo $0" >&2; exit 2; }
  command -v debootstrap >/dev/null || { echo "mica: error: debootstrap is missing: apt-get install debootstrap" >&2; exit 2; }
  local mirror release
  if [[ ! -e $bare_debian/base.made ]]; then
    # From the mirror of this machine's packages.
    read -r mirror release < <(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages')
    rm -rf "$bare_debian/base"
    mkdir -p "$bare_debian"
    debootstrap --variant=minbase --include=ca-certificates "$release" "$bare_debian/base" "$mirror"
    touch "$bare_debian/base.made"
  fi
}

# in_bare_debian [MOUNT_HERE=FOLDER...] -- COMMAND...: runs it as root in a fresh copy (an overlay; an earlier one is deleted)
# with its own processes and mounts. FOLDER is mounted there as /mnt/MOUNT_HERE.
in_bare_debian() {
  local mounts=() file
  while [[ $1 != -- ]]; do mounts+=("$1"); shift; done
  shift
  rm -rf "$bare_debian"/{changes,work}
  mkdir -p "$bare_debian"/{changes,work,root}
  # This machine's access to packages: name resolution, certificates, settings of apt and pip.
  mkdir -p "$bare_debian/changes/etc"
  for file in /etc/resolv.conf /etc/hosts /etc/pip.conf; do
    [[ ! -e $file ]] || cp -L "$file" "$bare_debian/changes/etc/"
  done
  mkdir -p "$bare_debian/changes/etc/ssl"
  cp -rL /etc/ssl/certs "$bare_debian/changes/etc/ssl/"
  MOUNTS="${mounts[*]}" FOLDER=$bare_debian unshare --mount --pid --fork --kill-child bash -euc '
    cd "$FOLDER"
    mount -t overlay overlay -o lowerdir=base,upperdir=changes,workdir=work root
    mount -t proc proc root/proc
    mount --rbind /dev root/dev
    mount -t tmpfs tmpfs root/tmp
    for pair in $MOUNTS; do
      mkdir -p "root/mnt/${pair%%=*}"
      mount --bind "${pair#*=}" "root/mnt/${pair%%=*}"
    done
    settings=()
    while IFS= read -r -d "" setting; do
      case "$setting" in PIP_*|*_proxy=*|SSL_CERT_*|REQUESTS_CA_BUNDLE=*|CURL_CA_BUNDLE=*) settings+=("$setting") ;; esac
    done < <(env -0)
    exec chroot root env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
      DEBIAN_FRONTEND=noninteractive "${settings[@]}" "$@"' in_bare_debian "$@"
}
