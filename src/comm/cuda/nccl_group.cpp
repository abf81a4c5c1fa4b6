// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/gpu_groups.hpp"
#include "mica/core/error.hpp"

#include "gpu_group.hpp"
#include "nccl_comm.hpp"
#include "nccl_registrations.hpp"
#include "nccl_watch.hpp"

namespace mica {
namespace {

ncclDataType_t nccl_dtype(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    default:
      break;
  }
  throw ConfigError(fmt::format("NCCL cannot reduce {}: only fp32, bf16 and fp16", dtype_name(dtype)));
}

std::size_t count(ConstTensorView view) { return static_cast<std::size_t>(view.numel()); }
std::size_t bytes(ConstTensorView view) { return static_cast<std::size_t>(view.bytes()); }

class NcclGroup final : public cuda::GpuGroup {
 public:
  NcclGroup(std::unique_ptr<ProcessGroup> host, const NcclOptions& options, std::shared_ptr<nccl::Watch> watch)
      : GpuGroup(*host), options_(options), gpu_(cuda::current_gpu()), host_(std::move(host)), watch_(std::move(watch)) {}
  ~NcclGroup() override {
    watch_->forget(this);
    if (communicator_) watch_->remove_communicator(*communicator_);
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  [[nodiscard]] std::unique_ptr<ProcessGroup> duplicate(std::string name) override {
    return std::make_unique<NcclGroup>(host_->duplicate(std::move(name)), options_, watch_);
  }
  [[nodiscard]] std::unique_ptr<ProcessGroup> split(int color, int key, std::string name) override {
    return std::make_unique<NcclGroup>(host_->split(color, key, std::move(name)), options_, watch_);
  }
  [[nodiscard]] ProcessGroup& on_host() override { return *host_; }
  void connect() override {
    if (!is_alone()) static_cast<void>(connected());
  }
  [[nodiscard]] Buffer allocate(Pool& pool, std::int64_t bytes, MemoryRole role, Stream& home) override {
    auto* blocks = dynamic_cast<BlockMemory*>(&pool);
    if (blocks == nullptr || !registrations_ || bytes == 0 || bytes < options_.register_from_bytes) return pool.allocate(bytes, role, home);
    Buffer buffer = blocks->allocate_block(bytes, role, home);
    if (registered_pool_ != &pool) {
      require(registered_pool_ == nullptr, "group '{}' was given memory of two pools", name());
      registered_pool_ = &pool;
      blocks->add_block_user(registrations_);
    }
    registrations_->add(buffer.data(), blocks->block_bytes(buffer.data()));
    return buffer;
  }

 protected:
  void enqueue_all_gather(Stream& s, ConstTensorView shard, TensorView full) override {
    communicate(s, {reads(shard), writes(full)}, "ncclAllGather", [=](ncclComm_t comm, cudaStream_t stream) {
      return ncclAllGather(shard.data, full.data, bytes(shard), ncclInt8, comm, stream);
    });
  }
  void enqueue_reduce_scatter(Stream& s, ConstTensorView full, TensorView shard) override {
    const ncclDataType_t type = nccl_dtype(full.dtype);
    communicate(s, {reads(full), writes(shard)}, "ncclReduceScatter", [=](ncclComm_t comm, cudaStream_t stream) {
      return ncclReduceScatter(full.data, shard.data, count(shard), type, ncclSum, comm, stream);
    });
  }
  void enqueue_all_reduce(Stream& s, TensorView data, ReduceOp op) override {
    const ncclDataType_t type = nccl_dtype(data.dtype);
    communicate(s, {reads(data), writes(data)}, "ncclAllReduce", [=](ncclComm_t comm, cudaStream_t stream) {
      return ncclAllReduce(data.data, data.data, count(data), type, op == ReduceOp::sum ? ncclSum : ncclMax, comm, stream);
    });
  }
  void enqueue_all_to_all(Stream& s, ConstTensorView sent, TensorView received) override {
    const int ranks = num_ranks();
    communicate(s, {reads(sent), writes(received)}, "ncclSend and ncclRecv", [=](ncclComm_t comm, cudaStream_t stream) {
      const std::size_t slice = bytes(sent) / static_cast<std::size_t>(ranks);
      nccl::check(ncclGroupStart(), "ncclGroupStart");
      ncclResult_t first_error = ncclSuccess;  // ncclGroupEnd must be called even after an error
      const auto note = [&](ncclResult_t result) {
        if (first_error == ncclSuccess && result != ncclInProgress) first_error = result;
      };
      for (int r = 0; r < ranks; ++r) {
        const std::size_t at = static_cast<std::size_t>(r) * slice;
        note(ncclSend(static_cast<const char*>(sent.data) + at, slice, ncclInt8, r, comm, stream));
        note(ncclRecv(static_cast<char*>(received.data) + at, slice, ncclInt8, r, comm, stream));
      }
      const ncclResult_t ended = ncclGroupEnd();
      return first_error == ncclSuccess ? ended : first_error;
    });
  }
  void enqueue_broadcast(Stream& s, TensorView data, int root) override {
    communicate(s, {root == rank() ? reads(data) : writes(data)}, "ncclBroadcast", [=](ncclComm_t comm, cudaStream_t stream) {
      return ncclBroadcast(data.data, data.data, bytes(data), ncclInt8, root, comm, stream);
    });
  }
  /// NCCL has no barrier: an all-reduce of one number.
  void enqueue_barrier(Stream& s) override {
    if (barrier_number_ == nullptr) {
      cuda::stay_on(gpu_);
      void* memory = nullptr;
      cuda::check(cudaMalloc(&memory, sizeof(float)), "cudaMalloc");
      barrier_number_.reset(static_cast<float*>(memory));
      s.submit("barrier", {}, [number = memory, stream = cuda::native(s)] {
        cuda::check(cudaMemsetAsync(number, 0, sizeof(float), stream), "cudaMemsetAsync");
      });
    }
    communicate(s, {}, "ncclAllReduce", [number = barrier_number_.get()](ncclComm_t comm, cudaStream_t stream) {
      return ncclAllReduce(number, number, 1, ncclFloat32, ncclSum, comm, stream);
    });
  }

 private:
  struct FreeDeviceMemory {
    void operator()(float* memory) const { static_cast<void>(cudaFree(memory)); }
  };

  template <class Launch>
  void communicate(Stream& s, std::initializer_list<Access> accesses, const char* what, Launch launch) {
    // Outside the task: if no communicator can be made, the host fails at once, not later with the stream's error.
    nccl::Communicator& communicator = connected();
    s.annotate(call().label, call().bytes);
    s.submit(collective_name(call().kind), accesses, [this, &s, &communicator, what, launch, call = call(), stream = cuda::native(s)] {
      const auto refuse_if_ended = [&] {
        if (const std::string first = watch_->ended_by(); !first.empty()) {
          note_end(call, false, 0);
          throw NcclError(fmt::format("{} was not started, because NCCL's communication had ended: {}", describe(call), first));
        }
      };
      refuse_if_ended();
      try {
        nccl::Watch::Entry entry;
        entry.what = describe(call);
        entry.stream = &s;
        entry.communicator = &communicator;
        entry.group = this;
        entry.on_end = [this, call](bool succeeded, std::int64_t busy_ns) { note_end(call, succeeded, busy_ns); };
        watch_->take_events(entry.begin, entry.end);
        cuda::check(cudaEventRecord(entry.begin, stream), "cudaEventRecord");
        communicator.run([&](ncclComm_t comm) { return launch(comm, stream); }, what);
        cuda::check(cudaEventRecord(entry.end, stream), "cudaEventRecord");
        watch_->add(std::move(entry));
      } catch (const NcclError& e) {
        refuse_if_ended();  // if the watch has aborted the communicator meanwhile
        const std::string why = fmt::format("{}: {}", describe(call), e.what());
        watch_->end(why);  // work launched before the failure would never end
        note_end(call, false, 0);
        throw NcclError(why);
      }
    });
  }

  void end_waiting(const std::string& why) override {
    host_->abort(why);
    watch_->end(why);
  }

  nccl::Communicator& connected() {
    if (!communicator_) {
      const std::string ended_by = watch_->ended_by();
      require<NcclError>(ended_by.empty(), "group '{}' (rank {} of {}): no NCCL communicator, because NCCL's communication had ended: {}",
                         name(), rank(), num_ranks(), ended_by);
      communicator_ = std::make_unique<nccl::Communicator>(*host_, options_.timeout);
      watch_->add_communicator(*communicator_);
      if (options_.register_from_bytes != kRegisterNothing && nccl::can_register()) {
        registrations_ = std::make_shared<nccl::Registrations>(*communicator_);
      }
    }
    return *communicator_;
  }

  NcclOptions options_;
  int gpu_;
  std::unique_ptr<ProcessGroup> host_;
  std::shared_ptr<nccl::Watch> watch_;
  std::unique_ptr<nccl::Communicator> communicator_;
  std::shared_ptr<nccl::Registrations> registrations_;  // destroyed before the communicator; the pool calls forget_block()
  const Pool* registered_pool_ = nullptr;
  std::unique_ptr<float, FreeDeviceMemory> barrier_number_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_nccl_group(std::unique_ptr<ProcessGroup> host, const NcclOptions& options) {
  auto watch = std::make_shared<nccl::Watch>(cuda::current_gpu(), options.timeout);
  return std::make_unique<NcclGroup>(std::move(host), options, std::move(watch));
}

bool nccl_can_register() { return nccl::can_register(); }

std::string nccl_version_text() {
  int version = 0;
  nccl::check(ncclGetVersion(&version), "ncclGetVersion");
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace mica
