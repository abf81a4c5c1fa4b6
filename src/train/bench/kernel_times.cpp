// SPDX-License-Identifier: Apache-2.0
#include "kernel_times.hpp"

#include <algorithm>
#include <map>
#include <sstream>

#include "host_buffer.hpp"
#include "product_bound.hpp"
#include "timing.hpp"

namespace mica::train::bench {
namespace {

constexpr double kSecondsPerCopy = 0.05;
/// Smaller ones may tell the bandwidth of a cache.
constexpr std::int64_t kLargeCopy = 1 << 20;

/// What rank 0 saw of one kind of call: a task's name and the bytes of a call.
struct Calls {
  std::int64_t count = 0, nanoseconds = 0;
};
using CallsOf = std::map<std::pair<std::string, std::int64_t>, Calls>;

/// Of rank 0, on every rank, so that all make the same comparisons. @collective
CallsOf of_first_rank(const mpi::Communicator& world, const std::vector<TracedTask>& tasks) {
  std::ostringstream mine;
  if (world.rank() == 0) {
    CallsOf calls;
    for (const TracedTask& task : tasks) {
      Calls& c = calls[{task.name, task.accessed_bytes}];
      ++c.count;
      c.nanoseconds += task.end_ns - task.begin_ns;
    }
    for (const auto& [key, c] : calls) mine << key.first << '\n' << key.second << ' ' << c.count << ' ' << c.nanoseconds << '\n';
  }
  std::istringstream text(world.broadcast_string(mine.str(), 0));
  CallsOf calls;
  for (std::string name, numbers; std::getline(text, name) && std::getline(text, numbers);) {
    std::istringstream fields(numbers);
    std::int64_t bytes = 0;
    Calls c;
    fields >> bytes >> c.count >> c.nanoseconds;
    calls[{name, bytes}] = c;
  }
  return calls;
}

/// Seconds of one copy that reads and writes this many bytes in all, from memory that has rested. @collective
double time_copy(const App& app, BenchRun& run, std::int64_t bytes, std::int64_t operand_bytes) {
  const std::int64_t half = std::max<std::int64_t>(bytes / 2, 1);
  const std::int64_t count = std::max<std::int64_t>(operand_bytes / (2 * half), 1);
  const HostBuffer from(count * half), to(count * half);
  Stream& stream = run.device.device_mesh->compute();
  std::int64_t at = 0;
  return median_call(app.world, kSecondsPerCopy, [&] {
    at = (at + 1) % count;
    const auto view = [&](const HostBuffer& buffer) {
      return TensorView(static_cast<std::byte*>(buffer.data()) + at * half, {half}, DType::u8);
    };
    run.device.kernels->copy(stream, view(from), view(to));
    stream.synchronize();
  });
}

/// FLOPs of a call: attention has two products forward and five backward, which computes the scores again. 0 for other tasks.
double attention_task_flops(const std::string& task, const Config& config) {
  const double two_products = attention_flops(config) / (3.0 * static_cast<double>(config.model.layers));
  return task == "attention" ? two_products : task == "attention_backward" ? 2.5 * two_products : 0;
}

}  // namespace

double KernelTime::share_of_limit() const { return seconds > 0 ? std::max(copy_seconds, product_seconds) / seconds : 0; }

double StepTimes::other_seconds() const {
  double rest = seconds;
  for (const KernelTime& kernel : kernels) rest -= kernel.seconds;
  return rest;
}

StepTimes time_kernels(const App& app, BenchRun& run, const Config& config, std::int64_t warmup) {
  std::vector<ProductShape> products;
  for (std::int64_t step = 1; step <= warmup; ++step) {
    if (step == warmup) run.device.kernels->record_products(&products);
    static_cast<void>(run.runner.run(step, config.optim.lr));
  }
  run.device.kernels->record_products(nullptr);
  app.world.barrier();
  const double begin = now_s();
  run.device.tracer->start();
  for (std::int64_t step = warmup + 1; step <= warmup + config.train.steps; ++step) {
    static_cast<void>(run.runner.run(step, config.optim.lr));
  }
  run.device.tracer->stop();
  const auto steps = static_cast<double>(config.train.steps);
  StepTimes times{.seconds = (now_s() - begin) / steps};

  std::map<std::string, KernelTime> kernels;
  const std::int64_t operands = operand_bytes(run.device.pool->stats().peak);
  for (const auto& [key, calls] : of_first_rank(app.world, run.device.tracer->tasks())) {
    const auto& [task, bytes] = key;
    const double copy_s = bytes > 0 ? time_copy(app, run, bytes, operands) : 0;
    const double per_step = static_cast<double>(calls.count) / steps;
    KernelTime& kernel = kernels[task];
    kernel.task = task;
    kernel.calls += per_step;
    kernel.seconds += static_cast<double>(calls.nanoseconds) * 1e-9 / steps;
    kernel.bytes += static_cast<double>(bytes) * per_step;
    kernel.copy_seconds += copy_s * per_step;
    if (bytes >= kLargeCopy) times.copy_bytes_per_s = std::max(times.copy_bytes_per_s, static_cast<double>(bytes) / copy_s);
  }
  FastestLibrary libraries(app.world, run.device.num_threads, operands);
  for (const ProductShape& product : products) {
    const double seconds = libraries.least_seconds(product);
    KernelTime& kernel = kernels[product.task];
    kernel.flops += flops_of({product});
    kernel.product_seconds += seconds;
    times.product_flops_per_s = std::max(times.product_flops_per_s, flops_of({product}) / seconds);
  }
  for (auto& [task, kernel] : kernels) {
    if (const double flops = attention_task_flops(task, config); flops > 0) {
      kernel.flops = flops * kernel.calls;
      kernel.product_seconds = kernel.flops / times.product_flops_per_s;
    }
    times.kernels.push_back(kernel);
  }
  std::ranges::sort(times.kernels, std::greater(), &KernelTime::seconds);
  return times;
}

}  // namespace mica::train::bench
