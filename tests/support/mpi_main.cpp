// SPDX-License-Identifier: Apache-2.0
// The main of every test that runs under mpirun: `mpirun -np N test --expect-world=N [--funneled] [gtest flags]`.
// Rank 0 prints as GoogleTest does, the others print their failures only, each line with its rank. All ranks exit with
// the same status, and not before all are done. If a test leaves some ranks behind (one failed and returned, the others
// wait for it in a collective) the job ends with a message instead of the test's time limit.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/mpi/communicator.hpp"
#include "mica/mpi/session.hpp"

#include "support/mpi_test.hpp"

namespace {

using mica::mpi::Communicator;
using mica::mpi::Session;
constexpr std::chrono::seconds kStragglers{45};

class RankListener final : public ::testing::EmptyTestEventListener {
 public:
  explicit RankListener(const Communicator& world) : world_(world) {}

  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed() || world_.rank() == 0) return;
    std::ostringstream text;
    text << result.file_name() << ":" << result.line_number() << ": " << result.message();
    std::istringstream lines(text.str());
    for (std::string line; std::getline(lines, line);) std::fprintf(stderr, "[rank %d] %s\n", world_.rank(), line.c_str());
  }

  void OnTestEnd(const ::testing::TestInfo& info) override {
    MPI_Request request = MPI_REQUEST_NULL;
    mica::mpi::check(MPI_Ibarrier(world_.get(), &request), "MPI_Ibarrier");
    const auto deadline = std::chrono::steady_clock::now() + kStragglers;
    for (int done = 0;;) {
      mica::mpi::check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done != 0) return;
      if (std::chrono::steady_clock::now() > deadline) {
        std::fprintf(stderr, "[rank %d] %s.%s ended here (%s), but other ranks have not come out of it for %d s: ending the job\n",
                     world_.rank(), info.test_suite_name(), info.name(), info.result()->Passed() ? "passed" : "FAILED",
                     static_cast<int>(kStragglers.count()));
        Session::abort(1);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  const Communicator& world_;
};

int run_tests(const Communicator& world, int expected_world) {
  if (world.num_ranks() != expected_world) {
    if (world.rank() == 0) {
      std::fprintf(stderr, "this test was started on %d ranks; expected --expect-world=%d\n", world.num_ranks(), expected_world);
    }
    return 1;
  }
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (world.rank() != 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new RankListener(world));
  int status = RUN_ALL_TESTS();
  if (::testing::UnitTest::GetInstance()->test_to_run_count() == 0) {
    std::fprintf(stderr, "[rank %d] no test was run\n", world.rank());
    status = 1;
  }
  return static_cast<int>(world.all_max(status));
}

}  // namespace

namespace mica::testing {
const mica::mpi::Session* session_of_test = nullptr;
const mica::mpi::Session& session() { return *session_of_test; }
}  // namespace mica::testing

int main(int argc, char** argv) {
  int expected_world = 0;
  mica::mpi::SessionOptions options;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--expect-world=", 15) == 0) expected_world = std::atoi(argv[i] + 15);
    if (std::strcmp(argv[i], "--funneled") == 0) options.want_thread_multiple = false;
  }
  Session session(&argc, &argv, options);
  mica::testing::session_of_test = &session;
  ::testing::InitGoogleTest(&argc, argv);
  int status = 1;
  {
    const Communicator world = Communicator::world();
    status = run_tests(world, expected_world);
  }
  session.close();
  return status;
}
