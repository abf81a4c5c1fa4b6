// SPDX-License-Identifier: Apache-2.0
#include "mica/checkpoint/async_saver.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "mica/core/rounding.hpp"

#include "save_job.hpp"
#include "whole_tensors.hpp"

namespace mica::checkpoint {
namespace {

/// Copies are aligned for direct I/O, so that they can be written without another copy.
constexpr std::int64_t kSectorBytes = 512;

std::int64_t padded(std::int64_t bytes) { return round_up(bytes, kSectorBytes); }

/// The first aligned address in the buffer.
std::byte* first_sector(const Buffer& buffer) {
  const auto address = reinterpret_cast<std::uintptr_t>(buffer.data());
  return static_cast<std::byte*>(buffer.data()) + (padded(static_cast<std::int64_t>(address)) - static_cast<std::int64_t>(address));
}

}  // namespace

std::int64_t snapshot_bytes(const fsdp::Root& root, const optim::Optimizer* optimizer) {
  const Mesh& mesh = root.device_mesh().mesh();
  if (!writes_shard_file(mesh.geometry(), mesh.rank())) return 0;
  const std::vector<DType> states = optimizer != nullptr ? optimizer->state_dtypes() : std::vector<DType>{};
  const auto state_bytes = [&](std::int64_t numel) {
    std::int64_t sum = 0;
    for (const DType dtype : states) sum += padded(numel * dtype_bytes(dtype));
    return sum;
  };
  // What was frozen after its first step keeps its state.
  const auto with_state = optimizer != nullptr ? optimizer->parameters_with_state() : std::set<std::string>();
  std::int64_t bytes = kSectorBytes;  // the buffer may begin inside a sector
  for (const fsdp::UnitStorage* storage : unit_storages(root)) {
    if (storage->shard_size() == 1 && mesh.shard_rank() != 0) continue;
    const std::int64_t numel = storage->layout().shard_numel();
    const bool has_state = storage->is_trainable() || with_state.contains(storage->parameters().front().full_name);
    bytes += padded(numel * dtype_bytes(DType::f32)) + (has_state ? state_bytes(numel) : 0);
  }
  if (mesh.shard_rank() != 0) return bytes;
  for (const WholeTensor& tensor : whole_tensors(root)) bytes += padded(tensor.shape.numel() * dtype_bytes(tensor.dtype));
  for (const fsdp::UnitParameter& p : root.ignored_parameters()) {
    if (p.parameter->requires_grad || with_state.contains(p.full_name)) bytes += state_bytes(p.parameter->shape.numel());
  }
  return bytes;
}

AsyncSaver::AsyncSaver(std::unique_ptr<HostComm> background, Pool& pool, Retries retries)
    : background_(std::move(background)), pool_(pool), retries_(with_own_hooks(std::move(retries))) {}

Retries AsyncSaver::with_own_hooks(Retries retries) {
  invariant(!retries.tell, "take_failed_attempts() tells");
  retries.are_over = [this, are_over = std::move(retries.are_over)] { return is_ending_ || (are_over && are_over()); };
  retries.tell = [this](const std::string& failure) {
    const std::lock_guard lock(mutex_);
    failed_attempts_.push_back(failure);
  };
  return retries;
}

AsyncSaver::~AsyncSaver() {
  is_awaited_ = is_ending_ = true;
  if (thread_.joinable()) thread_.join();
}

void AsyncSaver::reserve(const fsdp::Root& root, const optim::Optimizer* optimizer) {
  const std::int64_t bytes = snapshot_bytes(root, optimizer);
  if (snapshot_.bytes() >= bytes) return;
  snapshot_.reset();
  snapshot_ = pool_.allocate(bytes, MemoryRole::snapshot, root.device_mesh().compute());
  root.device_mesh().compute().synchronize();
  std::memset(snapshot_.data(), 0, static_cast<std::size_t>(bytes));
}

void AsyncSaver::start(const std::string& run_folder, const SaveState& state, const HostComm& comm, const SaveOptions& options) {
  wait();
  // The ranks agree after each part that can fail on a single rank, before they communicate again: a background thread that waits for
  // a rank that never comes could not be ended.
  comm.agree([&] { reserve(*state.root, state.optimizer); });
  job_ = std::make_unique<SaveJob>(make_save_job(run_folder, state, comm));
  options_ = options;
  report_.reset();
  enum : int { undecided, go, drop };
  const auto decision = std::make_shared<std::atomic<int>>(undecided);
  try {
    comm.agree([&] {
      copy(*job_, state.root->device_mesh());
      thread_ = std::jthread([this, decision] {
        decision->wait(undecided);
        if (*decision == go) write();
      });
    });
  } catch (...) {
    *decision = drop;
    decision->notify_all();
    if (thread_.joinable()) thread_.join();
    throw;
  }
  is_done_ = is_awaited_ = false;
  *decision = go;
  decision->notify_all();
}

void AsyncSaver::write() {
  try {
    report_ = run_save_job(*job_, *background_, options_, retries_);
  } catch (...) {
    failure_ = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    is_done_ = true;
  }
  done_.notify_all();
}

void AsyncSaver::copy(SaveJob& job, fsdp::DeviceMesh& device_mesh) {
  job.contents.pace = {WorkerPriority::background, &is_awaited_};
  if (!job.writes_shard) return;
  std::byte* to = first_sector(snapshot_);
  for (ShardSource& source : job.contents.sources) {
    const ConstTensorView from{source.memory, Shape{source.numel}, source.dtype};
    invariant(to + from.bytes() - static_cast<std::byte*>(snapshot_.data()) <= snapshot_.bytes(), "reserve() counts what is saved");
    const TensorView copy{to, Shape{from.numel()}, from.dtype};
    device_mesh.kernels().copy(device_mesh.compute(), from, copy);
    source.memory = to;
    source.device = nullptr;
    to += padded(from.bytes());
  }
  device_mesh.compute().synchronize();
}

void AsyncSaver::wait() {
  is_awaited_ = true;
  if (thread_.joinable()) thread_.join();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

bool AsyncSaver::wait_for(std::chrono::milliseconds time) {
  is_awaited_ = true;
  std::unique_lock lock(mutex_);
  return done_.wait_for(lock, time, [&] { return is_done_.load(); });
}

std::vector<std::string> AsyncSaver::take_failed_attempts() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failed_attempts_, {});
}

std::optional<SaveReport> AsyncSaver::take_finished() {
  if (!is_done_ || failure_) return std::nullopt;
  return std::exchange(report_, std::nullopt);
}

}  // namespace mica::checkpoint
