// SPDX-License-Identifier: Apache-2.0
// An MPI_Init that takes long under srun: a lost host ends the start, a firewall does not, and neither does a watch that cannot start.
#include "mica/launch/init_watch.hpp"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mica/core/host.hpp"

#include "support/own_network.hpp"

namespace mica::launch {
namespace {

using test::in_own_network;
using test::kSilentNetwork;
using ::testing::ExitedWithCode;

/// A rank whose MPI_Init takes as long as its watch; ends with 0 if that does not end it.
[[noreturn]] void wait_in_init(const std::string& other_host, const char* rank) {
  ::alarm(30);
  ::setenv("SLURM_STEP_NODELIST", (host_name() + "," + other_host).c_str(), 1);
  ::setenv("SLURM_LOCALID", rank, 1);
  ::setenv("SLURM_PROCID", rank, 1);
  for (const char* variable : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"}) ::unsetenv(variable);
  std::jthread watch = watch_init();
  if (watch.joinable()) watch.join();
  ::_exit(0);
}

TEST(InitWatch, AHostThatDoesNotAnswerEndsAllRanksOfTheNode) {
  in_own_network(kSilentNetwork, [] {
    const pid_t second = ::fork();
    if (second == 0) wait_in_init("10.9.8.2", "1");
    EXPECT_EXIT(wait_in_init("10.9.8.2", "0"), ExitedWithCode(3),
                "mica: error: .* cannot reach 10.9.8.2 at 10.9.8.2 from mica0 .*: no answer within 1 s: MPI does not start");
    int status = 0;
    EXPECT_EQ(::waitpid(second, &status, 0), second);
    EXPECT_EQ(WEXITSTATUS(status), 3);
    return !::testing::Test::HasFailure();
  });
}

// Where the first rank is not there, another one looks, and says what it sees.
TEST(InitWatch, ARankThatHearsNothingLooksItself) {
  in_own_network(kSilentNetwork, [] {
    EXPECT_EXIT(wait_in_init("10.9.8.2", "1"), ExitedWithCode(3), "mica: error: .* cannot reach 10.9.8.2");
    return !::testing::Test::HasFailure();
  });
}

// The others of a node do not look while its first rank does: hundreds of ranks at once would be a flood.
TEST(InitWatch, TheFirstRankLooksForAllOfTheNode) {
  in_own_network(kSilentNetwork + " && ip addr add 10.9.8.4/24 dev mica0 && ip link set lo up", [] {
    const pid_t first = ::fork();
    if (first == 0) wait_in_init("10.9.8.4", "0");  // this host: it refuses
    EXPECT_EXIT(wait_in_init("10.9.8.2", "1"), ExitedWithCode(0), "^$");
    int status = 0;
    EXPECT_EQ(::waitpid(first, &status, 0), first);
    EXPECT_EQ(status, 0);
    return !::testing::Test::HasFailure();
  });
}

TEST(InitWatch, MayBeTurnedOff) {
  in_own_network(kSilentNetwork, [] {
    EXPECT_EXIT(
        {
          ::setenv("MICA_INIT_WATCH", "off", 1);
          wait_in_init("10.9.8.2", "0");
        },
        ExitedWithCode(0), "^$");
    return !::testing::Test::HasFailure();
  });
}

TEST(InitWatch, AFirewallThatAnswersIsAWarning) {
  in_own_network(kSilentNetwork + " && ip route add unreachable 10.9.8.3", [] {
    EXPECT_EXIT(wait_in_init("10.9.8.3", "0"), ExitedWithCode(0), "mica: warning: .*: No route to host: MPI_Init takes long");
    return !::testing::Test::HasFailure();
  });
}

TEST(InitWatch, WithoutThreadsThereIsNone) {
  EXPECT_EXIT(
      {
        test::forbid_threads();
        wait_in_init("10.9.8.2", "0");
      },
      ExitedWithCode(0), "");
}

}  // namespace
}  // namespace mica::launch
