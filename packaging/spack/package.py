# SPDX-License-Identifier: Apache-2.0
# A Spack package. docs/install.md tells how to build the checkout that this file lies in with it.

from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Mica(CMakePackage, CudaPackage):
    """A training runtime for MPI clusters: trains models that do not fit one device by sharding parameters, gradients and
    optimizer state across ranks."""

    homepage = "https://example.org/mica"  # until the project has a public address

    license("Apache-2.0")

    version("0.2.0")

    variant("sentencepiece", default=True, description="Read SentencePiece models in mica-tokenize")
    variant("bench", default=True, description="Build mica-bench")

    generator("ninja")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")

    depends_on("mpi@3.1:")
    depends_on("hdf5@1.10.2:")
    depends_on("onednn@2.6: cpu_runtime=omp")
    depends_on("fmt@9.0:")
    depends_on("nlohmann-json@3.9:", type="build")
    depends_on("boost@1.74: +program_options")
    depends_on("sentencepiece", when="+sentencepiece")

    with when("+cuda"):
        depends_on("cuda@12.5:")
        depends_on("nccl@2.14:")
        depends_on("cudnn@9.0:")
        conflicts("cuda_arch=none", msg="say cuda_arch=80, 90, ...")

    conflicts("%gcc@:10", msg="C++20 as Mica has it needs g++ 11 or newer")
    conflicts("%clang@:17", msg="clang 16 crashes in the kernels for AVX-512; 17 does not know the instruction sets by name")

    def cmake_args(self):
        args = [
            self.define("MICA_BUILD_TESTS", False),
            self.define("HDF5_ROOT", self.spec["hdf5"].prefix),
            self.define("DNNL_ROOT", self.spec["onednn"].prefix),
            self.define_from_variant("MICA_BUILD_BENCH", "bench"),
            self.define_from_variant("MICA_WITH_SENTENCEPIECE", "sentencepiece"),
            self.define_from_variant("MICA_ENABLE_CUDA", "cuda"),
        ]
        if self.spec.satisfies("+cuda"):
            args.append(self.define("CMAKE_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value))
        return args
