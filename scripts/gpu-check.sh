#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the checks that need a GPU, also on a machine that has only CUDA, and no MPI, HDF5 or network.
#   scripts/gpu-check.sh pack              here: builds for the GPU and puts programs and libraries into build/gpu-check
#                                          (and build/gpu-check.tar.xz, some 40 MB for one architecture)
#   build/gpu-check/run                    there: lists the stages
#   build/gpu-check/run kernels parity     there: runs these, the first six in a minute; `all` runs every one
#   scripts/gpu-check.sh emulate BUILD     here: packs a build's programs for emulated GPUs and runs two stages, a test of this script
# Stages: kernels device comm parity checkpoint train memcheck racecheck synccheck. Speed: scripts/gpu-bench.sh, packed along.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
source scripts/environment.sh

out=build/gpu-check
programs=()
for name in bin/mica-{train,tokenize,bench,inspect,report} tests/gpu_{tensor,fused_attention,device,comm,parity,checkpoint}; do
  programs+=("build/cuda/$name=${name#*/}")
done

# Libraries that the other machine has: the C library, and those of CUDA and its driver.
is_theirs() {
  case "$1" in
    libc.so* | libm.so* | ld-linux* | libpthread* | libdl.so* | librt.so*) return 0 ;;
    libcuda* | libcudart* | libcublas* | libcudnn* | libnccl* | libnv* | libnvrtc*) return 0 ;;
  esac
  return 1
}

# Copies the libraries that a program or library needs into the folder.
take_libraries() {
  local library path
  ldd "$1" | while read -r library _ path _; do
    [[ -f "$path" ]] || continue
    is_theirs "$library" || cp -nL "$path" "$out/lib/"
  done
}

# Open MPI loads its components and help texts at run time: copies those needed on one machine.
pack_mpi() {
  local parts part
  parts=$(ompi_info --path pkglibdir | awk '{print $2}')
  mkdir -p "$out/lib/openmpi" "$out/lib/pmix"
  for part in "$parts"/mca_*.so "$(dirname "$(realpath "$(ldd "$parts"/mca_pmix_ext3x.so | awk '/libpmix/ {print $3}')")")"/pmix/*.so; do
    ldd "$part" | grep -qE 'libuc[pstm]|liboshmem|libfabric|libpsm|libibverbs|librdmacm|libportals|libcuda|not found' && continue
    case "$part" in */pmix/*) cp -L "$part" "$out/lib/pmix/" ;; *) cp -L "$part" "$out/lib/openmpi/" ;; esac
    take_libraries "$part"
  done
  local program
  for program in mpirun orted; do
    cp -L "$(command -v "$program")" "$out/bin/"
    take_libraries "$out/bin/$program"
  done
  mkdir -p "$out/share/openmpi"
  cp -L "$(ompi_info --path pkgdatadir | awk '{print $2}')"/*.txt "$out/share/openmpi/"
}

# Fills the folder: fill PROGRAM=NAME...
fill() {
  rm -rf "$out"
  mkdir -p "$out/lib" "$out/bin" "$out/share"
  local program
  for program in "$@"; do
    strip -o "$out/bin/${program#*=}" "${program%=*}"
    take_libraries "${program%=*}"
  done
  pack_mpi
  cp configs/*.cfg "$out/share/"
  cp scripts/gpu-bench.sh scripts/peers/torch_fsdp.py "$out/"
  sed -n '/^### environment/,/^### end of environment/p' "$0" > "$out/environment"
  sed -n '/^### stages/,$p' "$0" > "$out/stages"
  cat > "$out/run" <<'RUN'
#!/usr/bin/env bash
# Made by scripts/gpu-check.sh: runs stages of checks on this machine's GPU.
set -euo pipefail
cd "$(dirname "$0")"
source ./environment
source ./stages
RUN
  chmod +x "$out/run"
}

pack() {
  scripts/cudnn-frontend.sh
  cmake --preset cuda -DCMAKE_CUDA_ARCHITECTURES="${MICA_GPU_ARCH:-90}" -DMICA_BUILD_TESTS=ON
  cmake --build --preset cuda --parallel "$(scripts/build-jobs.sh)" --target apps/all gpu_tests
  fill "${programs[@]}"
  build/cuda/bin/mica-tokenize --quiet --vocab=bytes --out="$out/share/text.h5" /usr/share/common-licenses/GPL-3
  tar -C build -I 'xz -T0 -2' -cf "$out.tar.xz" gpu-check
  du -sh "$out" "$out.tar.xz"
}

# The same folder for emulated GPUs, and two of its stages, in an environment without this machine's Open MPI.
emulate() {
  out=$1/gpu-check
  fill "$1/tests/mica-train-emulated=mica-train" "$1/tests/unit_gpu_device=gpu_device"
  "$1/bin/mica-tokenize" --quiet --vocab=bytes --out="$out/share/text.h5" /usr/share/common-licenses/GPL-3
  printf '#!/bin/sh\necho an emulated GPU\n' > "$out/bin/nvidia-smi"
  chmod +x "$out/bin/nvidia-smi"
  env -i HOME="$HOME" PATH=/usr/bin:/bin MICA_CUDA_EMULATION_MEMORY=268435456 OMP_NUM_THREADS=1 STEPS=3 "$out/run" device train
}

case "${1:-}" in
  pack) pack ;;
  emulate) emulate "$(realpath "$2")" ;;
  *) sed -n '2,9p' "$0"; exit 2 ;;
esac
exit 0
### environment: where the programs find their libraries there, in this folder; gpu-bench.sh reads it too
# CUDA's libraries are in the toolkit, or in the Python packages that PyTorch installs.
theirs=$(printf '%s:' /usr/local/cuda*/lib64 /usr/local/cuda*/lib)
theirs+=$(python3 -c 'import glob, nvidia; print(":".join(d for p in nvidia.__path__ for d in glob.glob(p + "/*/lib")))' 2>/dev/null || true)
# CUDA 13 needs driver 580 or newer; with an older one, its compatibility library must come first.
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 | cut -d. -f1 || true)
if [[ "$driver" =~ ^[0-9]+$ && "$driver" -lt 580 ]]; then theirs="$(printf '%s:' /usr/local/cuda*/compat)$theirs"; fi
# A hardware queue for each stream: in tests of `staged`, ranks are threads with many streams, which wait for each other.
export CUDA_DEVICE_MAX_CONNECTIONS=32
export PATH="$PWD/bin:$PATH" LD_LIBRARY_PATH="$PWD/lib:$theirs:${LD_LIBRARY_PATH:-}" OPAL_PREFIX="$PWD"
export OMPI_MCA_mca_base_component_path="$PWD/lib/openmpi" PMIX_MCA_mca_base_component_path="$PWD/lib/pmix"
export OMPI_MCA_ess_singleton_isolated=1 OMPI_MCA_plm=isolated OMPI_MCA_btl=self,vader OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1 PMIX_MCA_gds=hash PMIX_MCA_psec=native
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
### end of environment
### stages: what `run` does on the machine with the GPU
out=${OUT:-$PWD/results}
mkdir -p "$out"

train() { # NAME FLAGS...: a short run, its metrics into results
  rm -rf "$out/$1"
  bin/mica-train share/gpt2-tiny-text.cfg --data.train=share/text.train.h5 --data.val=share/text.val.h5 --run.dir="$out/$1" \
    --train.steps="${STEPS:-8}" --optim.warmup_steps=2 --train.log_interval=1 "${@:2}"
}
sanitize() { # TOOL PROGRAM FLAGS...
  CUDA_MODULE_LOADING=EAGER compute-sanitizer --tool "$1" --error-exitcode 9 "bin/$2" "${@:3}"
}
stage_kernels() { bin/gpu_tensor --gtest_brief=1 && bin/gpu_fused_attention --gtest_brief=1; }
stage_device() { bin/gpu_device --gtest_brief=1; }
# With `staged`, streams wait for the host, so kernels must be loaded before their first launch.
stage_comm() { CUDA_MODULE_LOADING=EAGER bin/gpu_comm --gtest_brief=1; }
stage_checkpoint() { CUDA_MODULE_LOADING=EAGER bin/gpu_checkpoint --gtest_brief=1; }
stage_parity() { CUDA_MODULE_LOADING=EAGER bin/gpu_parity --gtest_brief=1; }
stage_train() {  # only the last status of a stage counts
  train cpu --mesh.device=cpu && train gpu --mesh.device=cuda && train cpu-bf16 --mesh.device=cpu --fsdp.param_dtype=bf16 &&
    train gpu-bf16 --mesh.device=cuda --fsdp.param_dtype=bf16 && compare_losses
}
compare_losses() {
  python3 - "$out" <<'PY'
import json, sys
losses = lambda run: [json.loads(l)["loss"] for l in open(f"{sys.argv[1]}/{run}/metrics.jsonl") if '"step"' in l and '"loss"' in l]
failed = False
for run, other, bound in (("gpu", "cpu", 1e-5), ("gpu-bf16", "cpu-bf16", 1e-3)):
    cpu, gpu = losses(other), losses(run)
    worst = max(abs(a - b) / a for a, b in zip(cpu, gpu, strict=True))
    failed |= not worst <= bound
    print(f"{run}: losses of {len(gpu)} steps within {worst:.2e} of the CPU's, allowed {bound}")
sys.exit(failed)
PY
}
# In the arena pool, memcheck could not see where a tensor ends.
stage_memcheck() {
  local -x MICA_GPU_POOL=plain
  sanitize memcheck gpu_tensor --gtest_filter='-*Large*' && sanitize memcheck gpu_comm
}
stage_racecheck() { sanitize racecheck gpu_tensor --gtest_filter='-*Large*'; }  # not gpu_comm: with NCCL's kernels racecheck does not finish
stage_synccheck() { sanitize synccheck gpu_tensor --gtest_filter='-*Large*' && sanitize synccheck gpu_comm; }

stages=(kernels device comm parity checkpoint train memcheck racecheck synccheck)
if [[ $# -eq 0 ]]; then
  echo "stages: ${stages[*]}, or all"
  exit 2
fi
[[ "$1" == all ]] && set -- "${stages[@]}"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
if ldd bin/* 2> /dev/null | grep 'not found'; then
  echo "libraries are missing: add their folders to LD_LIBRARY_PATH" >&2
  exit 1
fi
bin/mica-train --version
failed=()
for stage in "$@"; do
  echo "== $stage"
  begin=$SECONDS
  if ! "stage_$stage" > "$out/$stage.log" 2>&1; then failed+=("$stage"); fi
  tail -n 5 "$out/$stage.log"
  echo "== $stage: $((SECONDS - begin)) s"
done
if [[ ${#failed[@]} -gt 0 ]]; then
  echo "FAILED: ${failed[*]} (logs in $out)"
  exit 1
fi
