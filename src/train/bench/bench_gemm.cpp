// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>

#include "mica/tensor/raw_product.hpp"
#include "mica/train/setup.hpp"

#include "bench_model.hpp"
#include "benches.hpp"
#include "blas_library.hpp"
#include "command_line.hpp"
#include "hardware_out.hpp"
#include "host_buffer.hpp"
#include "product_bound.hpp"
#include "report.hpp"
#include "timing.hpp"

namespace mica::train::bench {
namespace {

constexpr const char* kGemmHelp = R"(mica-bench gemm [--flags]

The matrix products of GPT-2's linear layers: forward, input gradient (dx) and weight gradient (dw). Prints GFLOP/s of Mica's kernels
(bias and bias gradient included), of plain oneDNN and of OpenBLAS (libopenblas.so.0, if installed; bf16 if built with it), which take
turns in one process; a column stays empty where the processor has no bf16 instructions. Figures are medians over the rounds. Under
mpirun all ranks compute at once and the slowest counts. --hardware-out also measures attention, memory and the time of an empty task, and writes the file that mica-plan --hardware=FILE reads.

  OMP_NUM_THREADS=1 mica-bench gemm
  OMP_NUM_THREADS=1 mpirun -np 2 mica-bench gemm --dtypes bf16
  OMP_NUM_THREADS=1 mpirun -np 2 mica-bench gemm --hardware-out=this.json

Plain oneDNN gets row-major weights, as a gathered unit has them; packed weights would be faster, but packing takes time too.
More rounds give steadier figures.
)";

struct GemmOptions {
  std::int64_t rows = 1024, width = 768, vocab = 50304, head_rows = 256, rounds = 5;
  std::string dtypes = "fp32,bf16";
  std::string hardware_out;
};

struct Layer {
  const char* name;
  std::int64_t m, n, k;  // y[m,n] = x[m,k] w[n,k]^T
};

/// One matrix product, which all libraries compute.
struct Contest {
  std::string name;
  ProductShape shape;
  std::function<void()> mica;
};

/// Median seconds of one call of each contender. They take turns, `rounds` times.
std::vector<double> race(const mpi::Communicator& world, const std::vector<std::function<void()>>& contenders, std::int64_t rounds) {
  std::vector<std::vector<double>> times(contenders.size());
  int calls = 1;
  for (const auto& run : contenders) run();
  calls = static_cast<int>(std::clamp(0.02 / timed_together(world, contenders.front()), 1.0, 100.0));
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      times[i].push_back(timed_together(world,
                                        [&] {
                                          for (int call = 0; call < calls; ++call) contenders[i]();
                                        }) /
                         calls);
    }
  }
  std::vector<double> medians;
  for (const auto& list : times) medians.push_back(median(list));
  return medians;
}

/// Memory for x, w, dy and the results of one layer, and Mica's three products on it.
class LayerProducts {
 public:
  LayerProducts(Kernels& kernels, Stream& stream, const Layer& l, DType dtype)
      : x_(l.m * l.k * dtype_bytes(dtype)),
        w_(l.n * l.k * dtype_bytes(dtype)),
        y_(l.m * l.n * dtype_bytes(dtype)),
        bias_(l.n * dtype_bytes(dtype)),
        out_(std::max({l.m * l.n, l.m * l.k, l.n * l.k}) * 4) {
    const TensorView x(x_.data(), {l.m, l.k}, dtype), w(w_.data(), {l.n, l.k}, dtype), y(y_.data(), {l.m, l.n}, dtype);
    const TensorView bias(bias_.data(), {l.n}, dtype);
    void* out = out_.data();
    contests_ = {
        {"forward",
         {l.m, l.n, l.k, false, true, dtype},
         [=, &kernels, &stream] {
           kernels.linear(stream, x, w, bias, {out, {l.m, l.n}, dtype});
         }},
        {"dx",
         {l.m, l.k, l.n, false, false, dtype},
         [=, &kernels, &stream] {
           kernels.linear_backward_input(stream, y, w, {out, {l.m, l.k}, dtype}, Write::overwrite);
         }},
        {"dw",
         {l.n, l.k, l.m, true, false, dtype},
         [=, &kernels, &stream] {
           kernels.linear_backward_params(stream, y, x, {out, {l.n, l.k}, dtype}, bias, Write::overwrite);
         }},
    };
  }
  [[nodiscard]] const std::vector<Contest>& contests() const { return contests_; }
  /// A and B of contest i.
  [[nodiscard]] std::pair<const void*, const void*> operands(std::size_t i) const {
    if (i == 0) return {x_.data(), w_.data()};
    if (i == 1) return {y_.data(), w_.data()};
    return {y_.data(), x_.data()};
  }
  [[nodiscard]] void* out() const { return out_.data(); }

 private:
  HostBuffer x_, w_, y_, bias_, out_;
  std::vector<Contest> contests_;
};

po::options_description flags_of(GemmOptions& options) {
  po::options_description flags("Flags");
  auto add = flags.add_options();
  add("rows", po::value(&options.rows)->default_value(options.rows), "batch x seq");
  add("width", po::value(&options.width)->default_value(options.width), "hidden size of the model");
  add("vocab", po::value(&options.vocab)->default_value(options.vocab), "rows of the head's weight");
  add("head-rows", po::value(&options.head_rows)->default_value(options.head_rows), "rows of logits computed at a time");
  add("rounds", po::value(&options.rounds)->default_value(options.rounds), "rounds, in which each library takes a turn");
  add("dtypes", po::value(&options.dtypes)->default_value(options.dtypes), "fp32, bf16 or both");
  add("hardware-out", po::value(&options.hardware_out), "write a hardware file of this machine, for mica-plan");
  return flags;
}

}  // namespace

std::string gemm_help() {
  GemmOptions defaults;
  return help_text(kGemmHelp, flags_of(defaults));
}

ExitCode bench_gemm(App& app, const Arguments& arguments) {
  GemmOptions options;
  read_flags(app, arguments, flags_of(options));
  std::vector<DType> dtypes;
  app.comm.agree([&] {
    for (const std::int64_t n : {options.rows, options.width, options.vocab, options.head_rows, options.rounds}) {
      require<ConfigError>(n >= 1 && n <= 1 << 24, "mica-bench gemm: {} is out of range, expected 1 to 2^24", n);
    }
    const bool has_both = options.dtypes == "fp32,bf16" || options.dtypes == "bf16,fp32";
    require<ConfigError>(has_both || options.dtypes == "fp32" || options.dtypes == "bf16", "--dtypes={}, expected fp32, bf16 or fp32,bf16",
                         options.dtypes);
    if (options.dtypes != "bf16") dtypes.push_back(DType::f32);
    if (options.dtypes != "fp32") dtypes.push_back(DType::bf16);
    if (!options.hardware_out.empty()) check_computing_out(options.hardware_out, app.world, dtypes.size() == 2);
  });
  Config config;
  config.mesh.device = "cpu";  // whose libraries it compares
  Device device = make_device(app, config);
  const std::unique_ptr<Stream> stream = make_cpu_stream("compute", StreamMode::inlined);
  const std::vector<BlasLibrary> found = BlasLibrary::find(device.num_threads);
  const auto blas = std::ranges::find(found, "OpenBLAS", &BlasLibrary::name);
  const std::int64_t c = options.width;
  const std::vector<Layer> layers{{"qkv", options.rows, 3 * c, c},
                                  {"proj", options.rows, c, c},
                                  {"up", options.rows, 4 * c, c},
                                  {"down", options.rows, c, 4 * c},
                                  {"head", options.head_rows, options.vocab, c}};
  Report report(app.world.rank() == 0);
  MeasuredComputing measured{.threads = device.num_threads};
  for (const DType dtype : dtypes) {
    double flops = 0, mica_s = 0;
    for (const Layer& layer : layers) {
      const LayerProducts products(*device.kernels, *stream, layer, dtype);
      for (std::size_t i = 0; i < products.contests().size(); ++i) {
        const Contest& contest = products.contests()[i];
        const auto [a, b] = products.operands(i);
        // All ranks make the same calls.
        auto raw = make_raw_product(contest.shape);
        if (!on_every_rank(app.world, raw != nullptr)) raw.reset();
        const bool has_blas = on_every_rank(app.world, blas != found.end() && blas->supports(dtype));
        std::vector<std::function<void()>> contenders{contest.mica};
        if (has_blas) contenders.emplace_back([&, a = a, b = b] { blas->run(contest.shape, a, b, products.out()); });
        if (raw) contenders.emplace_back([&, a = a, b = b] { raw->run(a, b, products.out()); });
        const std::vector<double> seconds = race(app.world, contenders, options.rounds);
        stream->synchronize();  // throws if a product failed
        flops += flops_of({contest.shape});
        mica_s += seconds[0];
        const auto speed = [&](double s) { return rounded(flops_of({contest.shape}) / s * 1e-9, 1); };
        const auto best = std::min_element(seconds.begin() + 1, seconds.end());
        report.add({{"bench", "gemm"},
                    {"dtype", std::string(dtype_name(dtype))},
                    {"layer", layer.name},
                    {"product", contest.name},
                    {"m", contest.shape.m},
                    {"n", contest.shape.n},
                    {"k", contest.shape.k},
                    {"ranks", app.world.num_ranks()},
                    {"threads", device.num_threads},
                    {"mica_gf_s", speed(seconds[0])},
                    {"onednn_gf_s", raw ? Row(speed(seconds.back())) : Row()},
                    {"openblas_gf_s", has_blas ? Row(speed(seconds[1])) : Row()},
                    {"mica_vs_best", best == seconds.end() ? Row() : Row(rounded(*best / seconds[0]))}});
      }
    }
    (dtype == DType::f32 ? measured.fp32_tflops : measured.bf16_tflops) = flops / mica_s * 1e-12;
  }
  report.print_table();
  if (!options.hardware_out.empty()) write_computing(options.hardware_out, app.world, *device.kernels, measured);
  return ExitCode::done;
}

}  // namespace mica::train::bench
