// SPDX-License-Identifier: Apache-2.0
// A first exchange that takes long, under a launcher that passes on addresses.
#include <chrono>
#include <cstdio>
#include <iterator>
#include <string_view>
#include <thread>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <mpi.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "mica/core/unique_fd.hpp"
#include "mica/launch/first_exchange.hpp"
#include "mica/mpi/communicator.hpp"

namespace {
int port_of_others = 0;
}

// A name server that knows every rank, at a host of its own.
extern "C" int MPI_Publish_name(const char* /*service*/, MPI_Info /*info*/, const char* /*port*/) { return MPI_SUCCESS; }
extern "C" int MPI_Unpublish_name(const char* /*service*/, MPI_Info /*info*/, const char* /*port*/) { return MPI_SUCCESS; }
extern "C" int MPI_Lookup_name(const char* /*service*/, MPI_Info /*info*/, char* contact) {
  std::snprintf(contact, MPI_MAX_PORT_NAME, "elsewhere %d 127.0.0.1", port_of_others);
  return MPI_SUCCESS;
}

namespace mica::launch {
namespace {

/// Answers as rank 1 does, but only its second caller.
class LateBeacon {
 public:
  LateBeacon() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    EXPECT_EQ(::listen(socket_.get(), 8), 0);
    const timeval patience{10, 0};
    EXPECT_EQ(::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    port_of_others = ntohs(address.sin_port);
    thread_ = std::jthread([this] {
      const UniqueFd first(::accept(socket_.get(), nullptr, nullptr)), second(::accept(socket_.get(), nullptr, nullptr));
      EXPECT_TRUE(first && second) << "nobody asked again";
      constexpr std::string_view kAnswer = "mica rank 1\n";
      EXPECT_EQ(::send(second.get(), kAnswer.data(), kAnswer.size(), MSG_NOSIGNAL), std::ssize(kAnswer));
    });
  }

 private:
  UniqueFd socket_;
  std::jthread thread_;
};

TEST(LateAnswer, APeerThatAnswersTheSecondTimeIsThere) {
  const mpi::Communicator world = mpi::Communicator::world();
  world.barrier();
  if (world.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(6500));  // the search begins after 1.5 s, and asks again after 3.6
    EXPECT_TRUE(first_exchange());
  } else {
    const LateBeacon beacon;
    EXPECT_TRUE(first_exchange());
  }
}

}  // namespace
}  // namespace mica::launch
