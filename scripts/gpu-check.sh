#!/usr/bin/env bash
# Runs what needs a GPU, also on a machine that has CUDA and nothing else of what Mica needs (no MPI, HDF5, network).
#   scripts/gpu-check.sh pack              here: builds for the GPU and puts programs and libraries into build/gpu-check
#                                          (and build/gpu-check.tar.xz, some 40 MB for one architecture)
#   build/gpu-check/run                    there: lists the stages
#   build/gpu-check/run kernels parity     there: runs these, each in under 9 minutes; `all` runs every one
# Stages: kernels device comm parity checkpoint train memcheck racecheck synccheck. Speed: scripts/gpu-bench.sh, packed along.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
source scripts/environment.sh

out=build/gpu-check
programs=(bin/mica-train bin/mica-tokenize bin/mica-bench bin/mica-inspect tests/gpu_tensor tests/gpu_fused_attention tests/gpu_device
          tests/gpu_comm tests/gpu_parity tests/gpu_checkpoint)

# What the machine there has itself: the C library, and all that comes with CUDA and its driver.
is_theirs() {
  case "$1" in
    libc.so* | libm.so* | ld-linux* | libpthread* | libdl.so* | librt.so*) return 0 ;;
    libcuda* | libcudart* | libcublas* | libcudnn* | libnccl* | libnv* | libnvrtc*) return 0 ;;
  esac
  return 1
}

pack() {
  scripts/cudnn-frontend.sh
  cmake --preset cuda -DCMAKE_CUDA_ARCHITECTURES="${MICA_GPU_ARCH:-90}" -DMICA_BUILD_TESTS=ON
  cmake --build --preset cuda --parallel "$(nproc)" --target apps/all gpu_tests
  rm -rf "$out"
  mkdir -p "$out/lib" "$out/bin" "$out/share"
  local program library path
  for program in "${programs[@]}"; do
    strip -o "$out/bin/${program##*/}" "build/cuda/$program"
    ldd "build/cuda/$program" | while read -r library _ path _; do
      [[ -f "$path" ]] || continue
      is_theirs "$library" || cp -nL "$path" "$out/lib/"
    done
  done
  # Open MPI looks for its parts and help texts at run time; one rank alone needs no launcher.
  local mpi
  mpi=$(dirname "$(realpath "$(ldd build/cuda/bin/mica-train | awk '/libmpi\.so/ {print $3}')")")
  cp -rL "$mpi/openmpi" "$out/lib/" 2>/dev/null || cp -rL /usr/lib/x86_64-linux-gnu/openmpi/lib/openmpi "$out/lib/"
  cp -rL /usr/share/openmpi "$out/share/" 2>/dev/null || true
  cp configs/*.cfg "$out/share/"
  cp scripts/gpu-bench.sh scripts/peers/torch_fsdp.py "$out/"
  "$out/bin/mica-tokenize" --quiet --vocab=bytes --out="$out/share/text.h5" /usr/share/common-licenses/GPL-3
  sed -n '/^### stages/,$p' "$0" > "$out/stages"
  cat > "$out/run" <<'RUN'
#!/usr/bin/env bash
# Made by scripts/gpu-check.sh: runs stages of checks on this machine's GPU.
set -euo pipefail
cd "$(dirname "$0")"
source ./stages
RUN
  chmod +x "$out/run"
  tar -C build -I 'xz -T0 -2' -cf "$out.tar.xz" gpu-check
  du -sh "$out" "$out.tar.xz"
}

case "${1:-}" in
  pack) pack ;;
  *) sed -n '2,8p' "$0"; exit 2 ;;
esac
exit 0
### stages: what `run` does on the machine with the GPU
# CUDA's libraries lie beside the toolkit, or in the Python packages that PyTorch brings.
theirs=$(printf '%s:' /usr/local/cuda*/lib64 /usr/local/cuda*/lib)
theirs+=$(python3 -c 'import glob, nvidia; print(":".join(d for p in nvidia.__path__ for d in glob.glob(p + "/*/lib")))' 2>/dev/null || true)
# Streams wait for the host in `staged`: kernels are loaded before, not at their first launch.
export CUDA_MODULE_LOADING=EAGER
export LD_LIBRARY_PATH="$PWD/lib:$theirs:${LD_LIBRARY_PATH:-}" OPAL_PREFIX="$PWD" OMPI_MCA_btl=self OMPI_MCA_mca_base_component_path="$PWD/lib/openmpi"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
out=${OUT:-$PWD/results}
mkdir -p "$out"

train() { # NAME FLAGS...: a short run, its metrics into results
  rm -rf "$out/$1"
  bin/mica-train share/gpt2-tiny-text.cfg --data.train=share/text.train.h5 --data.val=share/text.val.h5 --run.dir="$out/$1" \
    --train.steps=8 --optim.warmup_steps=2 --train.log_interval=1 "${@:2}"
}
sanitize() { # TOOL: the kernels and the groups
  compute-sanitizer --tool "$1" --error-exitcode 9 bin/gpu_tensor --gtest_filter='-*Large*' &&
    compute-sanitizer --tool "$1" --error-exitcode 9 bin/gpu_comm
}
stage_kernels() { bin/gpu_tensor --gtest_brief=1 && bin/gpu_fused_attention --gtest_brief=1; }
stage_device() { bin/gpu_device --gtest_brief=1; }
stage_comm() { bin/gpu_comm --gtest_brief=1; }
stage_checkpoint() { bin/gpu_checkpoint --gtest_brief=1; }
stage_parity() { bin/gpu_parity --gtest_brief=1; }
stage_train() {
  train cpu --mesh.device=cpu
  train gpu --mesh.device=cuda
  train cpu-bf16 --mesh.device=cpu --fsdp.param_dtype=bf16
  train gpu-bf16 --mesh.device=cuda --fsdp.param_dtype=bf16
  python3 - "$out" <<'PY'
import json, sys
losses = lambda run: [json.loads(l)["loss"] for l in open(f"{sys.argv[1]}/{run}/metrics.jsonl") if '"step"' in l and '"loss"' in l]
failed = False
for run, other, bound in (("gpu", "cpu", 1e-5), ("gpu-bf16", "cpu-bf16", 1e-3)):
    cpu = losses(other)
    worst = max(abs(a - b) / a for a, b in zip(cpu, losses(run)))
    failed |= not worst <= bound
    print(f"{run}: losses of {len(cpu)} steps within {worst:.2e} of the CPU's, allowed {bound}")
sys.exit(failed)
PY
}
stage_memcheck() { MICA_GPU_POOL=plain sanitize memcheck; }  # with a pool of pages it could not tell where a tensor ends
stage_racecheck() { sanitize racecheck; }
stage_synccheck() { sanitize synccheck; }

stages=(kernels device comm parity checkpoint train memcheck racecheck synccheck)
if [[ $# -eq 0 ]]; then
  echo "stages: ${stages[*]}, or all"
  exit 2
fi
[[ "$1" == all ]] && set -- "${stages[@]}"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
if ldd bin/* | grep 'not found'; then
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
