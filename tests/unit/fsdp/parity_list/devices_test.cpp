// SPDX-License-Identifier: Apache-2.0
// docs/parity.md B6, C6, D9 and D20: data, shards and gradients on a device where they do not belong. The second device is
// the CPU under another name (support/other_device.hpp).
#include <numeric>

#include "mica/fsdp/fully_shard.hpp"
#include "mica/fsdp/summon.hpp"

#include "norm_like.hpp"
#include "rank_rig.hpp"
#include "refusal.hpp"
#include "support/other_device.hpp"
#include "tree_module.hpp"

namespace mica::fsdp::testing {
namespace {

using test::kOtherDevice;
using test::OtherPool;
using test::OtherStream;

/// A rank whose units compute on the other device.
class OtherRig {
 public:
  explicit OtherRig(std::unique_ptr<ProcessGroup> world)
      : kernels_(make_cpu_kernels(pool_)),
        mesh_(make_mesh(std::move(world))),
        device_mesh_(mesh_, pool_, *kernels_,
                     Streams::make(StreamMode::inlined,
                                   [](std::string name, StreamMode) { return std::make_unique<OtherStream>(std::move(name)); })),
        context_{.compute = device_mesh_.compute(), .pool = pool_, .kernels = *kernels_} {}

  OtherPool& pool() { return pool_; }
  DeviceMesh& device_mesh() { return device_mesh_; }
  nn::Context& context() { return context_; }
  int rank() { return mesh_.rank(); }

  /// `numel` elements 1, 2, ... on the device.
  Tensor counted(std::int64_t numel) {
    Tensor x(pool_.allocate(numel * 4, MemoryRole::workspace, device_mesh_.compute()), Shape{numel}, DType::f32);
    std::iota(x.view().as<float>(), x.view().as<float>() + numel, 1.0F);
    return x;
  }

 private:
  static Mesh make_mesh(std::unique_ptr<ProcessGroup> world) {
    const int n = world->num_ranks();
    return {std::move(world), MeshGeometry{n, n, 1}};
  }
  OtherPool pool_;
  std::unique_ptr<Kernels> kernels_;
  Mesh mesh_;
  DeviceMesh device_mesh_;
  nn::Context context_;
};

std::vector<float> counted(std::int64_t numel) {
  std::vector<float> x(static_cast<std::size_t>(numel));
  std::iota(x.begin(), x.end(), 1.0F);
  return x;
}

std::vector<float> values(const nn::Parameter& p) { return {p.data.as<float>(), p.data.as<float>() + p.shape.numel()}; }

// B6: parameters of a unit on several devices are refused with both names; move_to_device brings those of the host
// along.
TEST(Devices, B6_ParametersOnSeveralDevicesAreRefused) {
  run_local_ranks(2, [](auto world) {
    OtherRig rig(std::move(world));
    auto model = make_chain({3, 5});
    fully_shard(*model, rig.device_mesh(), {});
    std::vector<float> weight = counted(15);
    const Tensor bias = rig.counted(5);
    const auto& parameters = model->children()[0].module->own_parameters();
    parameters[0]->data = {weight.data(), Shape{5, 3}, DType::f32};
    parameters[1]->data = bias;
    expect_refusal<ConfigError>([&] { root_of(*model).initialize(1); },
                                {"unit root", "several devices", "0.weight is on the CPU", "0.bias on device 200", "move_to_device"});
    root_of(*model).initialize({.seed = 1, .move_to_device = true});
    const SummonFullParams full(*model, {.write_back = false});
    EXPECT_EQ(values(*parameters[0]), counted(15));
    EXPECT_EQ(values(*parameters[1]), counted(5));
  });
}

// C6: given states on the wrong device are refused with the option to set, by all ranks though one alone has them.
TEST(Devices, C6_StatesOnTheWrongDeviceAreRefused) {
  for (const bool syncs : {false, true}) {
    run_local_ranks(3, [&](auto world) {
      OtherRig rig(std::move(world));
      auto model = make_chain({3, 5});
      Options options;
      options.sync_module_states = syncs;
      fully_shard(*model, rig.device_mesh(), options);
      std::vector<float> weight = counted(15);
      nn::Parameter& parameter = *model->children()[0].module->own_parameters()[0];
      if (rig.rank() == 0 || !syncs) parameter.data = {weight.data(), Shape{5, 3}, DType::f32};
      expect_refusal<ConfigError>([&] { root_of(*model).initialize(1); }, {"parameter 0.weight has data on the CPU",
                                                                           "computes on device 200", "InitializeOptions::move_to_device"});
      root_of(*model).initialize({.seed = 1, .move_to_device = true});
      const SummonFullParams full(*model, {.write_back = false});
      EXPECT_EQ(rig.pool().device_of(parameter.data.data), kOtherDevice);
      EXPECT_EQ(values(parameter), counted(15));
    });
  }
}

TEST(Devices, C6_BuffersOnTheWrongDeviceAreRefused) {
  run_local_ranks(2, [](auto world) {
    OtherRig rig(std::move(world));
    NormLike model(5);
    fully_shard(model, rig.device_mesh(), {});
    std::vector<float> mean = counted(5);
    model.mean().data = {mean.data(), Shape{5}, DType::f32};
    expect_refusal<ConfigError>([&] { root_of(model).initialize(1); }, {"buffer running_mean has data on the CPU", "device 200"});
    root_of(model).initialize({.seed = 1, .move_to_device = true});
    EXPECT_EQ(rig.pool().device_of(model.mean().data.data), kOtherDevice);
    EXPECT_EQ(model.mean().data.as<float>()[4], 5.0F);
  });
}

// C5, C6: what an initialisation function sets by itself is looked at, too.
TEST(Devices, C6_AFunctionThatLeavesDataOnTheWrongDeviceIsRefused) {
  run_local_ranks(2, [](auto world) {
    OtherRig rig(std::move(world));
    auto model = make_chain({3, 5});
    fully_shard(*model, rig.device_mesh(), {});
    std::vector<float> all = counted(15);
    InitializeOptions options;
    options.function = [&](ModuleInit& init) {
      for (const auto& p : init.module().own_parameters()) p->data = {all.data(), p->shape, DType::f32};
    };
    expect_refusal<ConfigError>([&] { root_of(*model).initialize(options); }, {"0.weight has data on the CPU"});
  });
}

/// A group of one rank with memory of its own, which it hands out whatever pool it is asked to use.
class WindowGroup final : public ProcessGroup {
 public:
  explicit WindowGroup(Pool& memory) : ProcessGroup(0, 1, "window"), memory_(memory) {}
  [[nodiscard]] std::unique_ptr<ProcessGroup> duplicate(std::string) override { return std::make_unique<WindowGroup>(memory_); }
  [[nodiscard]] std::unique_ptr<ProcessGroup> split(int, int, std::string) override { return std::make_unique<WindowGroup>(memory_); }
  [[nodiscard]] Buffer allocate(Pool&, std::int64_t bytes, MemoryRole role, Stream& home) override {
    return memory_.allocate(bytes, role, home);
  }

 private:
  void enqueue_all_gather(Stream&, ConstTensorView, TensorView) override {}
  void enqueue_reduce_scatter(Stream&, ConstTensorView, TensorView) override {}
  void enqueue_all_reduce(Stream&, TensorView, ReduceOp) override {}
  void enqueue_all_to_all(Stream&, ConstTensorView, TensorView) override {}
  void enqueue_broadcast(Stream&, TensorView, int) override {}
  void enqueue_barrier(Stream&) override {}

  Pool& memory_;
};

// D9: first use checks that every shard is where the setting says; the error names the device found and what to change.
TEST(Devices, D9_ShardsThatAreNotWhereTheSettingSaysAreFoundAtFirstUse) {
  const std::unique_ptr<Pool> host = make_cpu_pool();
  OtherPool device;
  struct Case {
    Pool& memory;
    CpuOffload offload;
    std::initializer_list<const char*> names;
  };
  const Case wrong[] = {
      {device,
       CpuOffload::parameters,
       {"parameters of unit root are on device 200", "fsdp.cpu_offload=parameters keeps them on the CPU", "set fsdp.cpu_offload=none"}},
      {*host,
       CpuOffload::none,
       {"unit root are on the CPU", "fsdp.cpu_offload=none keeps them on device 200", "set fsdp.cpu_offload=parameters"}},
      {*host, CpuOffload::gradients, {"fsdp.cpu_offload=gradients keeps them on device 200"}}};
  for (const Case& c : wrong) {
    OtherRig rig(std::make_unique<WindowGroup>(c.memory));
    TreeModule model("root", 5);
    fully_shard(model, rig.device_mesh(), {.cpu_offload = c.offload});
    root_of(model).initialize(1);
    expect_refusal<ConfigError>([&] { static_cast<void>(model.forward(rig.context(), {Tensor()}, nullptr)); }, c.names);
    root_of(model).abandon_step();
  }
  for (const bool offloads : {false, true}) {
    OtherRig rig(std::make_unique<WindowGroup>(offloads ? *host : static_cast<Pool&>(device)));
    TreeModule model("root", 5);
    fully_shard(model, rig.device_mesh(), {.cpu_offload = offloads ? CpuOffload::parameters : CpuOffload::none});
    root_of(model).initialize(1);
    EXPECT_NO_THROW(static_cast<void>(model.forward(rig.context(), {Tensor()}, nullptr)));
  }
}

// D9: what is offloaded is on the CPU, what is unsharded on the device.
TEST(Devices, D9_OffloadedShardsAreOnTheCpu) {
  run_local_ranks(2, [](auto world) {
    OtherRig rig(std::move(world));
    TreeModule model("root", 5);
    fully_shard(model, rig.device_mesh(), {.cpu_offload = CpuOffload::parameters});
    root_of(model).initialize(1);
    nn::Record record;
    nn::Tensors ys = model.forward(rig.context(), {Tensor()}, &record);
    EXPECT_EQ(rig.pool().device_of(model.weight().data.data), kOtherDevice);
    model.backward(rig.context(), std::move(record), ys);
    const UnitStorage& storage = *root_of(model).units()[0]->storage();
    EXPECT_EQ(storage.master_pool().device(), DeviceKind::cpu);
    EXPECT_EQ(rig.pool().device_of(storage.master().data), DeviceKind::cpu);
    EXPECT_EQ(rig.pool().device_of(storage.sharded_grad().data), DeviceKind::cpu);
  });
}

// D20: accumulating into a gradient of another shape or device is an error with both. Only whoever ignores a parameter
// brings a gradient array along.
TEST(Devices, D20_GradientsOfAnotherShapeOrDeviceAreRefused) {
  run_local_ranks(2, [](auto world) {
    OtherRig rig(std::move(world));
    TreeModule model("root", 3);
    nn::Parameter& ignored = model.child("ignored", "node", 5).weight();
    Options options;
    options.ignored_parameters = {&ignored};
    fully_shard(model, rig.device_mesh(), options);
    root_of(model).initialize(1);
    const Tensor data = rig.counted(5), grad = rig.counted(6);
    std::vector<float> on_host(5);
    ignored.data = data;
    const auto pass = [&] {
      nn::Record record;
      const nn::Tensors ys = model.forward(rig.context(), {Tensor()}, &record);
      model.backward(rig.context(), std::move(record), ys);
    };
    ignored.grad = grad;
    expect_refusal<Error>([&] { pass(); }, {"ignored.weight [5]", "shape [6]"});
    root_of(model).abandon_step();
    ignored.grad = {on_host.data(), Shape{5}, DType::f32};
    expect_refusal<Error>([&] { pass(); }, {"ignored.weight, which is on device 200", "one on the CPU"});
    root_of(model).abandon_step();
    ignored.grad = grad.view().slice(0, 5);
    EXPECT_NO_THROW(pass());
  });
}

}  // namespace
}  // namespace mica::fsdp::testing
