// SPDX-License-Identifier: Apache-2.0
// The dry device against real ones, by the counts of their pools and process groups, on a GPT-2 with odd sizes: every strategy, dtype,
// wrapping, prefetch, stream mode and accumulation on 1 to 4 ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/fsdp/deterministic.hpp"
#include "mica/nn/models/gpt2.hpp"
#include "mica/nn/models/llama.hpp"
#include "mica/nn/models/mlp.hpp"

#include "support/environment_number.hpp"
#include "unit/plan/layers.hpp"
#include "unit/plan/planned_run.hpp"

namespace mica::plan {
namespace {

using fsdp::BackwardPrefetch;
using fsdp::Strategy;
using test::Measured;
using test::PlannedRun;

std::unique_ptr<nn::Module> make_gpt2(bool checkpointed) {
  auto model = std::make_unique<nn::Gpt2>(
      nn::Gpt2Config{.layers = 3, .heads = 3, .width = 12, .context = 8, .vocab_size = 19, .tie_embeddings = true, .dropout = 0.1});
  model->for_each_module([&](const std::string&, nn::Module& module) {
    if (module.type_name() == "gpt2_block") module.set_checkpointed(checkpointed);
  });
  return model;
}

PlannedRun gpt2_run(bool checkpointed = false) {
  PlannedRun run;
  run.make_model = [checkpointed] { return make_gpt2(checkpointed); };
  run.wrap = fsdp::wrap_types({"gpt2_block"});
  run.inputs = {{Shape{2, 5}, DType::i32}, {Shape{2, 5}, DType::i32}};
  return run;
}

struct Grid {
  Strategy strategy;
  int shard_size;  // 0: the world
};

std::vector<Grid> grids(int num_ranks) {
  std::vector<Grid> found{{Strategy::full_shard, 0}, {Strategy::shard_grad_op, 0}, {Strategy::no_shard, 1}};
  for (const int shard_size : {1, 2}) {
    if (num_ranks % shard_size != 0) continue;
    found.push_back({Strategy::hybrid_shard, shard_size});
    found.push_back({Strategy::hybrid_shard_zero2, shard_size});
  }
  if (num_ranks > 1) found.push_back({Strategy::no_shard, 0});  // unsharded units on a sharded mesh
  return found;
}

class Exact : public ::testing::TestWithParam<int> {
 protected:
  void expect_exact(const PlannedRun& run, const std::string& what) {
    const int num_ranks = GetParam();
    run_local_ranks(num_ranks,
                    [&](auto world) {
                      StepRecorder recorder(test::dry_options(num_ranks, world->rank(), run));
                      const Measured dry = test::measure_run({}, run, &recorder);
                      test::expect_equal(dry, test::measure_run([&](Pool&) { return std::move(world); }, run), what);
                    },
                    {.shares_memory = run.shares_memory});
  }

  /// For tests of many cases: each on one of the four numbers of ranks, which is mixed over all settings and 1 the least often.
  /// soak.exactness runs each on all four.
  void expect_exact_on_one(const PlannedRun& run, const std::string& what) {
    if ((num_cases_++ % 7 + GetParam()) % 4 == 0 || test::environment_number("MICA_EXACTNESS_ON_ALL", 0) != 0) {
      expect_exact(run, what);
    }
  }

  int num_cases_ = 0;  ///< of expect_exact_on_one()
};

TEST_P(Exact, F4_EveryStrategyDtypeAndWrap) {
  for (const Grid& grid : grids(GetParam())) {
    for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
      for (const auto& [param, reduce] :
           {std::pair{DType::f32, DType::f32}, {DType::bf16, DType::f32}, {DType::bf16, DType::bf16}, {DType::f32, DType::bf16}}) {
        for (const char* wrap : {"block", "size", "none"}) {
          PlannedRun run = gpt2_run();
          run.options.strategy = grid.strategy;
          run.options.mixed_precision = {param, reduce};
          run.shard_size = grid.shard_size;
          run.mode = mode;
          if (wrap == std::string("size")) run.wrap = fsdp::wrap_min_numel(500);
          if (wrap == std::string("none")) run.wrap = fsdp::wrap_nothing();
          expect_exact_on_one(
              run, fmt::format("{} shard_size {} {} {}/{} wrap {}", strategy_name(grid.strategy), grid.shard_size,
                               mode == StreamMode::inlined ? "inline" : "threaded", dtype_name(param), dtype_name(reduce), wrap));
        }
      }
    }
  }
  EXPECT_EQ(num_cases_, static_cast<int>(grids(GetParam()).size()) * 2 * 4 * 3);
}

TEST_P(Exact, F4_EveryPrefetchAccumulationAndCheckpointing) {
  for (const Strategy strategy : {Strategy::full_shard, Strategy::shard_grad_op}) {
    for (const BackwardPrefetch prefetch : {BackwardPrefetch::pre, BackwardPrefetch::post, BackwardPrefetch::none}) {
      for (const bool forward_prefetch : {false, true}) {
        for (const int micro_batches : {1, 3}) {
          for (const bool no_sync : {false, true}) {
            for (const bool checkpointed : {false, true}) {
              PlannedRun run = gpt2_run(checkpointed);
              run.options.strategy = strategy;
              run.options.backward_prefetch = prefetch;
              run.options.forward_prefetch = forward_prefetch;
              run.micro_batches = micro_batches;
              run.no_sync = no_sync;
              run.mode = StreamMode::threaded;
              expect_exact_on_one(run, fmt::format("{} prefetch {}/{} micro_batches {} no_sync {} checkpointed {}", strategy_name(strategy),
                                                   static_cast<int>(prefetch), forward_prefetch, micro_batches, no_sync, checkpointed));
            }
          }
        }
      }
    }
  }
}

TEST_P(Exact, F4_PrefetchOfEachUnitListsAndWhatStaysUnsharded) {
  for (const Strategy strategy : {Strategy::full_shard, Strategy::shard_grad_op}) {
    for (const BackwardPrefetch of_blocks : {BackwardPrefetch::pre, BackwardPrefetch::post, BackwardPrefetch::none}) {
      for (const bool has_lists : {false, true}) {
        for (const bool stays : {false, true}) {
          PlannedRun run = gpt2_run();
          run.mode = StreamMode::threaded;
          run.options.strategy = strategy;
          run.options.backward_prefetch = BackwardPrefetch::none;  // the root's
          run.wrap = [of_blocks](const fsdp::WrapQuestion& q) -> fsdp::WrapAnswer {
            if (q.descends() || q.module.type_name() != "gpt2_block") return q.descends();
            fsdp::Options own = q.options;
            own.backward_prefetch = of_blocks;
            own.forward_prefetch = true;
            return own;
          };
          run.prepare = [has_lists, stays](fsdp::Root& root) {
            const std::vector<fsdp::Unit*>& units = root.units();
            ASSERT_EQ(units.size(), 4U);
            if (has_lists) {
              units[1]->set_forward_prefetch({units[2], units[3]});
              units[3]->set_backward_prefetch({units[2], units[1]});
            }
            if (stays) units[2]->set_reshard_after_backward(false);
          };
          expect_exact_on_one(run, fmt::format("{} blocks prefetch {}{}{}", strategy_name(strategy), static_cast<int>(of_blocks),
                                               has_lists ? " lists" : "", stays ? " a block stays" : ""));
        }
      }
    }
  }
}

TEST_P(Exact, F4_EveryShardingOffloadAndResharding) {
  for (const Strategy strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::shard_optim}) {
    for (const auto sharding : {fsdp::Sharding::flat, fsdp::Sharding::per_parameter}) {
      for (const auto offload : {fsdp::CpuOffload::none, fsdp::CpuOffload::gradients, fsdp::CpuOffload::parameters}) {
        for (const int neighbours : {0, 2}) {
          if (neighbours > 0 && (GetParam() % 2 != 0 || strategy != Strategy::full_shard)) continue;
          for (const DType dtype : {DType::f32, DType::bf16}) {
            for (const int micro_batches : {1, 2}) {
              PlannedRun run = gpt2_run();
              run.options.strategy = strategy;
              run.options.sharding = sharding;
              run.options.cpu_offload = offload;
              run.options.reshard_after_forward_ranks = neighbours;
              run.options.mixed_precision.param_dtype = dtype;
              run.micro_batches = micro_batches;
              run.mode = StreamMode::threaded;
              expect_exact_on_one(
                  run, fmt::format("{} sharding {} offload {} neighbours {} {} micro_batches {}", strategy_name(strategy),
                                   static_cast<int>(sharding), static_cast<int>(offload), neighbours, dtype_name(dtype), micro_batches));
            }
          }
        }
      }
    }
  }
}

// On groups that share memory: some of these share masters, the others gather as ever.
TEST_P(Exact, F4_SharedMemory) {
  for (const Grid& grid : grids(GetParam())) {
    for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
      for (const DType param : {DType::f32, DType::bf16}) {
        for (const auto sharding : {fsdp::Sharding::flat, fsdp::Sharding::per_parameter}) {
          for (const auto offload : {fsdp::CpuOffload::none, fsdp::CpuOffload::gradients, fsdp::CpuOffload::parameters}) {
            PlannedRun run = gpt2_run();
            run.options.strategy = grid.strategy;
            run.options.mixed_precision.param_dtype = param;
            run.options.sharding = sharding;
            run.options.cpu_offload = offload;
            run.options.forward_prefetch = mode == StreamMode::threaded;
            run.shard_size = grid.shard_size;
            run.mode = mode;
            run.micro_batches = 2;
            run.no_sync = mode == StreamMode::threaded;
            run.shares_memory = true;
            expect_exact_on_one(run,
                                fmt::format("shared memory, {} shard_size {} {} {} sharding {} offload {}", strategy_name(grid.strategy),
                                            grid.shard_size, mode == StreamMode::inlined ? "inline" : "threaded", dtype_name(param),
                                            static_cast<int>(sharding), static_cast<int>(offload)));
          }
        }
      }
    }
  }
}

// Tables whose gradients the ranks of a group write in turns; the other parameters' are each rank's own.
TEST_P(Exact, F4_SharedGradients) {
  for (const Grid& grid : grids(GetParam())) {
    for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
      for (const bool tied : {true, false}) {
        for (const bool in_backward : {false, true}) {
          PlannedRun run = gpt2_run();
          run.make_model = [tied] {
            return std::make_unique<nn::Gpt2>(
                nn::Gpt2Config{.layers = 2, .heads = 2, .width = 64, .context = 8, .vocab_size = 4099, .tie_embeddings = tied});
          };
          run.options.strategy = grid.strategy;
          run.shard_size = grid.shard_size;
          run.mode = mode;
          run.shares_memory = true;
          run.steps_in_backward = in_backward;
          run.micro_batches = in_backward ? 1 : 3;
          run.no_sync = !in_backward && tied;
          if (tied) run.options.mixed_precision = {DType::bf16, DType::f32};
          expect_exact(run,
                       fmt::format("shared gradients, {} shard_size {} {} {} in backward {}", strategy_name(grid.strategy), grid.shard_size,
                                   mode == StreamMode::inlined ? "inline" : "threaded", tied ? "tied" : "untied", in_backward));
        }
      }
    }
  }
}

// In one root: flat blocks, whose masters are shared, and a root unit cut parameter by parameter; and the other way round.
TEST_P(Exact, F4_SomeUnitsShareMasters) {
  for (const bool blocks_share : {false, true}) {
    for (const bool in_backward : {false, true}) {
      PlannedRun run = gpt2_run();
      run.mode = StreamMode::threaded;
      run.shares_memory = true;
      run.steps_in_backward = in_backward;
      run.options.sharding = blocks_share ? fsdp::Sharding::per_parameter : fsdp::Sharding::flat;
      run.wrap = [blocks_share](const fsdp::WrapQuestion& q) -> fsdp::WrapAnswer {
        if (q.descends() || q.module.type_name() != "gpt2_block") return q.descends();
        fsdp::Options own = q.options;
        own.sharding = blocks_share ? fsdp::Sharding::flat : fsdp::Sharding::per_parameter;
        return own;
      };
      run.prepare = [&](fsdp::Root& root) {
        for (const fsdp::Unit* unit : root.units()) {
          const bool is_block = unit != root.units().front();
          EXPECT_EQ(unit->storage()->shares_masters(), GetParam() > 1 && is_block == blocks_share) << unit->name();
        }
      };
      expect_exact(run, fmt::format("{} shares masters, in backward {}", blocks_share ? "every block" : "the root", in_backward));
    }
  }
}

// D6: gradients kept in reduce_dtype.
TEST_P(Exact, D6_LowPrecisionGradients) {
  for (const Grid& grid : grids(GetParam())) {
    for (const auto offload : {fsdp::CpuOffload::none, fsdp::CpuOffload::gradients}) {
      for (const auto& [param, reduce] : {std::pair{DType::bf16, DType::bf16}, {DType::f32, DType::f16}, {DType::bf16, DType::f32}}) {
        for (const bool in_backward : {false, true}) {
          PlannedRun run = gpt2_run();
          run.options.strategy = grid.strategy;
          run.shard_size = grid.shard_size;
          run.options.cpu_offload = offload;
          run.options.mixed_precision = {.param_dtype = param, .reduce_dtype = reduce, .keep_low_precision_grads = true};
          run.micro_batches = in_backward ? 1 : 2;
          run.steps_in_backward = in_backward;
          expect_exact_on_one(run,
                              fmt::format("low gradients {} shard_size {} offload {} {}/{} in backward {}", strategy_name(grid.strategy),
                                          grid.shard_size, static_cast<int>(offload), dtype_name(param), dtype_name(reduce), in_backward));
        }
      }
    }
  }
}

// C4: what hooks send and unpack.
TEST_P(Exact, C4_AllGatherHooks) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
      for (const auto offload : {fsdp::CpuOffload::none, fsdp::CpuOffload::parameters}) {
        PlannedRun run = gpt2_run();
        run.options.sharding = fsdp::Sharding::per_parameter;
        run.options.mixed_precision.param_dtype = dtype;
        run.options.cpu_offload = offload;
        run.mode = mode;
        run.prepare = [](fsdp::Root& root) {
          for (const fsdp::Unit* unit : root.units()) {
            for (const fsdp::UnitParameter& p : unit->storage()->parameters()) {
              if (p.full_name.ends_with("weight") && p.parameter->shape.num_dims() == 2) {
                unit->storage()->set_all_gather_hooks(*p.parameter, fsdp::int8_all_gather());
              }
            }
          }
        };
        expect_exact(run, fmt::format("int8 all-gather, {} {} offload {}", dtype_name(dtype),
                                      mode == StreamMode::inlined ? "inline" : "threaded", static_cast<int>(offload)));
      }
    }
  }
}

TEST_P(Exact, OutputsInAnotherDtype) {
  PlannedRun run;
  run.make_model = [] { return std::make_unique<test::Layers>(6, std::vector<std::int64_t>{10, 7}, 1); };
  run.inputs = {{Shape{1}, DType::f32}};
  run.options.mixed_precision.output_dtype = DType::bf16;
  expect_exact(run, "outputs cast to bf16");
}

// D10: sharded gradients live from a unit's reduction to its step.
TEST_P(Exact, D10_AnOptimizerInBackward) {
  for (const Strategy strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::hybrid_shard}) {
    for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
      for (const int micro_batches : {1, 3}) {
        PlannedRun run = gpt2_run();
        run.options.strategy = strategy;
        run.shard_size = strategy == Strategy::hybrid_shard ? 1 : 0;
        run.mode = mode;
        run.micro_batches = micro_batches;
        run.no_sync = micro_batches > 1;
        run.steps_in_backward = true;
        run.num_state_kinds = 2;
        expect_exact(run, fmt::format("in backward, {} x{}", strategy_name(strategy), micro_batches));
      }
    }
  }
}

TEST_P(Exact, AFrozenPrefix) {
  PlannedRun run = gpt2_run();
  run.options.root = fsdp::RootOptions{.use_orig_params = true};
  run.make_model = [] {
    auto model = std::make_unique<nn::Gpt2>(
        nn::Gpt2Config{.layers = 3, .heads = 3, .width = 12, .context = 8, .vocab_size = 19, .tie_embeddings = false});
    model->for_each_parameter([](const std::string& name, nn::Parameter& parameter) {
      if (!name.starts_with("transformer.h.2.") && !name.starts_with("lm_head")) parameter.requires_grad = false;
    });
    return model;
  };
  for (const Strategy strategy : {Strategy::full_shard, Strategy::shard_grad_op}) {
    run.options.strategy = strategy;
    expect_exact(run, fmt::format("{}, blocks that no gradient passes through", strategy_name(strategy)));
  }
}

TEST_P(Exact, EveryReduction) {
  for (const Grid& grid : grids(GetParam())) {
    for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
      for (const auto& [reduce, sharding] : {std::pair{DType::f32, fsdp::Sharding::flat}, {DType::bf16, fsdp::Sharding::per_parameter}}) {
        for (const bool is_deterministic : {true, false}) {
          PlannedRun run = gpt2_run();
          run.options.strategy = grid.strategy;
          run.options.sharding = sharding;
          run.options.mixed_precision.reduce_dtype = reduce;
          run.options.root = fsdp::RootOptions{.deterministic = is_deterministic};
          if (!is_deterministic) run.options.reduction = &fsdp::compressing_reduction(DType::f16);
          run.shard_size = grid.shard_size;
          run.mode = mode;
          run.micro_batches = 2;
          expect_exact(run, fmt::format("{} shard_size {} {} {} {}", strategy_name(grid.strategy), grid.shard_size,
                                        mode == StreamMode::inlined ? "inline" : "threaded", dtype_name(reduce),
                                        is_deterministic ? "deterministic" : "compressed"));
        }
      }
    }
  }
}

// It is not planned, so it must need no more than a step, and leave nothing behind.
TEST_P(Exact, AnEvaluationBetweenSteps) {
  std::vector<Grid> all = grids(GetParam());
  all.push_back({Strategy::shard_optim, 0});
  for (const Grid& grid : all) {
    for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
      for (const DType param : {DType::f32, DType::bf16}) {
        for (const bool wraps : {true, false}) {
          for (const bool in_full_precision : {false, true}) {
            PlannedRun run = gpt2_run();
            run.evaluates = true;
            run.options.strategy = grid.strategy;
            run.options.mixed_precision.param_dtype = param;
            run.options.root = fsdp::RootOptions{.full_precision_in_eval = in_full_precision};
            run.shard_size = grid.shard_size;
            run.mode = mode;
            if (!wraps) run.wrap = fsdp::wrap_nothing();
            if (!wraps && in_full_precision && param != DType::f32) continue;  // the whole model in fp32, which no step has
            const int num_ranks = GetParam();
            run_local_ranks(num_ranks, [&](auto world) {
              StepRecorder recorder(test::dry_options(num_ranks, world->rank(), run));
              const Measured dry = test::measure_run({}, run, &recorder);
              const Measured real = test::measure_run([&](Pool&) { return std::move(world); }, run);
              SCOPED_TRACE(fmt::format("{} shard_size {} {} {} {}{}", strategy_name(grid.strategy), grid.shard_size,
                                       mode == StreamMode::inlined ? "inline" : "threaded", dtype_name(param), wraps ? "block" : "none",
                                       in_full_precision ? " evaluates in fp32" : ""));
              EXPECT_EQ(dry.peak, real.peak);
              EXPECT_EQ(dry.steps.back().forward_peak, real.steps.back().forward_peak);
              EXPECT_EQ(dry.steps.back().backward_peak, real.steps.back().backward_peak);
              EXPECT_EQ(dry.steps.back().after_zero_grad, real.steps.back().after_zero_grad);
            });
          }
        }
      }
    }
  }
}

TEST_P(Exact, D11_UnitsInsideACheckpointedRegion) {
  PlannedRun run = gpt2_run();
  run.make_model = [] {
    auto model = make_gpt2(false);
    model->children()[0].module->set_checkpointed(true);  // all of the transformer, its blocks are units
    return model;
  };
  for (const bool forward_prefetch : {false, true}) {
    run.options.forward_prefetch = forward_prefetch;
    expect_exact(run, fmt::format("checkpointed outside of the units, forward prefetch {}", forward_prefetch));
  }
}

TEST_P(Exact, FrozenUnits) {
  PlannedRun run = gpt2_run();
  run.options.root = fsdp::RootOptions{.use_orig_params = true};
  run.make_model = [] {
    auto model = make_gpt2(false);
    model->for_each_parameter([](const std::string& name, nn::Parameter& parameter) {
      if (name.starts_with("transformer.h.1.") || name.ends_with("wpe.weight")) parameter.requires_grad = false;
    });
    return model;
  };
  expect_exact(run, "a frozen block and a frozen parameter");
}

TEST_P(Exact, ALlama) {
  for (const Strategy strategy : {Strategy::full_shard, Strategy::shard_grad_op}) {
    for (const bool checkpointed : {false, true}) {
      for (const bool tied : {false, true}) {
        for (const auto sharding : {fsdp::Sharding::flat, fsdp::Sharding::per_parameter}) {
          for (const DType dtype : {DType::f32, DType::bf16}) {
            PlannedRun run = gpt2_run();
            run.wrap = fsdp::wrap_types({"llama_block"});
            run.make_model = [=] {
              auto model = std::make_unique<nn::Llama>(nn::LlamaConfig{.layers = 3,
                                                                       .heads = 4,
                                                                       .kv_heads = 2,
                                                                       .head_dim = 6,
                                                                       .width = 12,
                                                                       .intermediate_size = 17,
                                                                       .context = 8,
                                                                       .vocab_size = 19,
                                                                       .tie_embeddings = tied});
              model->for_each_module([&](const std::string&, nn::Module& module) {
                if (module.type_name() == "llama_block") module.set_checkpointed(checkpointed);
              });
              return model;
            };
            run.options.strategy = strategy;
            run.options.sharding = sharding;
            run.options.mixed_precision.param_dtype = dtype;
            run.mode = tied ? StreamMode::threaded : StreamMode::inlined;
            expect_exact(run, fmt::format("llama {} sharding {} {} checkpointed {} tied {}", strategy_name(strategy),
                                          static_cast<int>(sharding), dtype_name(dtype), checkpointed, tied));
          }
        }
      }
    }
  }
}

/// Outputs kept or made again, in units of blocks and in units of single layers (which always keep theirs).
TEST_P(Exact, EveryRecompute) {
  const std::vector<std::pair<std::string, std::function<std::unique_ptr<nn::Module>()>>> models{
      {"gpt2", [] { return make_gpt2(false); }},
      {"gpt2 without dropout",
       [] { return std::make_unique<nn::Gpt2>(nn::Gpt2Config{.layers = 3, .heads = 3, .width = 12, .context = 8, .vocab_size = 19}); }},
      {"llama",
       [] {
         return std::make_unique<nn::Llama>(nn::LlamaConfig{
             .layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 6, .width = 12, .intermediate_size = 17, .context = 8, .vocab_size = 19});
       }},
      {"mlp",
       [] { return std::make_unique<nn::Mlp>(nn::MlpConfig{.layers = 3, .width = 12, .intermediate_size = 29, .vocab_size = 19}); }}};
  for (const auto& [name, make_model] : models) {
    for (const nn::Recompute recompute : {nn::Recompute::none, nn::Recompute::cheap}) {
      for (const bool checkpointed : {false, true}) {
        for (const bool by_layer : {false, true}) {
          PlannedRun run = gpt2_run();
          run.make_model = [&make_model = make_model, checkpointed] {
            auto model = make_model();
            model->for_each_module([&](const std::string&, nn::Module& module) {
              if (module.type_name().ends_with("_block")) module.set_checkpointed(checkpointed);
            });
            return model;
          };
          run.wrap = by_layer ? fsdp::wrap_types({"linear", "layer_norm"}) : fsdp::wrap_types({"gpt2_block", "llama_block", "mlp_block"});
          run.recompute = recompute;
          run.micro_batches = 2;
          expect_exact(run, fmt::format("{} recompute {} checkpointed {} by layer {}", name,
                                        recompute == nn::Recompute::none ? "none" : "cheap", checkpointed, by_layer));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Exact, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace mica::plan
