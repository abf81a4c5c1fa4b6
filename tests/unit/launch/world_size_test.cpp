// SPDX-License-Identifier: Apache-2.0
// Which launchers' variables say that several processes were started. Each case in a process of its own in tests/fault/launch_test.cpp;
// here, what must not be refused.
#include "mica/launch/world_size.hpp"

#include <cstdlib>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"

#include "support/temporary_folder.hpp"

namespace mica::launch {
namespace {

class WorldSize : public ::testing::Test {
 protected:
  WorldSize() { clear(); }
  ~WorldSize() override { clear(); }
  static void set(const std::map<std::string, std::string>& variables) {
    clear();
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  static void clear() {
    for (const char* name :
         {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "PMI_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_PROCID"}) {
      ::unsetenv(name);
    }
  }
};

TEST_F(WorldSize, WhatWasAskedForIsFine) {
  for (const std::map<std::string, std::string>& variables :
       {std::map<std::string, std::string>{},
        {{"OMPI_COMM_WORLD_SIZE", "1"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_NUM_TASKS", "4"}},
        {{"PMI_SIZE", "1"}, {"SLURM_NTASKS", "4"}},
        {{"SLURM_NTASKS", "1"}, {"SLURM_STEP_NUM_TASKS", "1"}},
        {{"PMI_SIZE", ""}}}) {
    set(variables);
    EXPECT_NO_THROW(check_world_size(1));
    EXPECT_NO_THROW(check_started_by_launcher(1));
  }
  set({{"OMPI_COMM_WORLD_SIZE", "4"}, {"PMI_SIZE", "4"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_NTASKS", "4"}});
  EXPECT_NO_THROW(check_world_size(4));
  EXPECT_NO_THROW(check_started_by_launcher(4));
}

// A tool of one process may run beside a job's tasks.
TEST_F(WorldSize, OneProcessInAnAllocationIsRefusedOnlyWhereALauncherIsMeant) {
  set({{"SLURM_NTASKS", "4"}});
  EXPECT_NO_THROW(check_world_size(1));
  EXPECT_THROW(check_started_by_launcher(1), ConfigError);
}

TEST_F(WorldSize, EachLauncherIsNamed) {
  const auto refusal = [](const std::map<std::string, std::string>& variables) {
    set(variables);
    return test::error_of<ConfigError>([] { check_world_size(1); });
  };
  EXPECT_THAT(refusal({{"OMPI_COMM_WORLD_SIZE", "3"}}),
              ::testing::StartsWith("Open MPI's mpirun started 3 processes (OMPI_COMM_WORLD_SIZE)"));
  EXPECT_THAT(refusal({{"PMI_SIZE", "3"}}),
              ::testing::StartsWith("mpiexec of MPICH's family (or srun --mpi=pmi2) started 3 processes (PMI_SIZE)"));
  EXPECT_THAT(refusal({{"SLURM_STEP_NUM_TASKS", "2"}}), ::testing::StartsWith("srun started 2 tasks (SLURM_STEP_NUM_TASKS)"));
}

}  // namespace
}  // namespace mica::launch
