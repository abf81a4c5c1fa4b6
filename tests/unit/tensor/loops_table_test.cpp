// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "mica/core/error.hpp"

#include "loops_testing.hpp"
#include "support/paths.hpp"

namespace mica {
namespace {

TEST(LoopsTable, EveryEntryIsFilled) {
  ASSERT_FALSE(testing::all_loops().empty());
  for (const cpu::Loops* loops : testing::all_loops()) {
    // The table is an Isa and then function pointers only.
    const auto* words = reinterpret_cast<const void* const*>(loops);
    for (std::size_t i = 1; i < sizeof(cpu::Loops) / sizeof(void*); ++i) EXPECT_NE(words[i], nullptr) << "entry " << i;
  }
}

/// What a fresh process makes of MICA_CPU_ISA; null: not set.
int exit_code_with_isa(const char* isa) {
  if (isa == nullptr) {
    unsetenv("MICA_CPU_ISA");
  } else {
    setenv("MICA_CPU_ISA", isa, 1);
  }
  try {
    return static_cast<int>(cpu::loops().isa);
  } catch (const ConfigError& e) {
    return std::string(e.what()).find(isa) != std::string::npos ? 100 : 101;
  }
}

TEST(LoopsTableDeathTest, TheBestIsChosenUnlessTheVariableDecides) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::exit(exit_code_with_isa(nullptr)), ::testing::ExitedWithCode(static_cast<int>(testing::all_loops().back()->isa)), "");
  for (const cpu::Loops* loops : testing::all_loops()) {
    EXPECT_EXIT(std::exit(exit_code_with_isa(testing::name_of(*loops))), ::testing::ExitedWithCode(static_cast<int>(loops->isa)), "");
  }
  EXPECT_EXIT(std::exit(exit_code_with_isa("v9")), ::testing::ExitedWithCode(100), "");
}

/// The same, said before any kernel runs.
int exit_code_of_kernels_with_isa(const char* isa) {
  setenv("MICA_CPU_ISA", isa, 1);
  const auto pool = make_cpu_pool();
  try {
    static_cast<void>(make_cpu_kernels(*pool));
  } catch (const ConfigError& e) {
    return std::string(e.what()).find(isa) != std::string::npos ? 100 : 101;
  }
  return 0;
}

TEST(LoopsTableDeathTest, AWrongVariableIsSaidWhenKernelsAreMade) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::exit(exit_code_of_kernels_with_isa("v9")), ::testing::ExitedWithCode(100), "");
  EXPECT_EXIT(std::exit(exit_code_of_kernels_with_isa("v2")), ::testing::ExitedWithCode(0), "");
}

// [Note: isa code]: an inline function or template emitted here would be kept for processors that cannot run it.
TEST(LoopsTable, IsaObjectsDefineOnlyTheirInstallers) {
  std::ifstream list(test::program_folder() + "/../isa_objects.txt");
  ASSERT_TRUE(list) << "the build writes isa_objects.txt";
  int objects = 0, installers = 0;
  std::string command = "nm --defined-only --extern-only --demangle --print-file-name";
  for (std::string object; std::getline(list, object);) {
    if (object.empty()) continue;
    ++objects;
    command += " '" + object + "'";
  }
  FILE* nm = popen(command.c_str(), "r");
  ASSERT_NE(nm, nullptr);
  char line[4096];
  while (std::fgets(line, sizeof line, nm) != nullptr) {
    const std::string text(line);
    // Data of the address sanitizer's own.
    if (text.find("__odr_asan") != std::string::npos || text.find("DW.ref.") != std::string::npos) continue;
    const bool is_installer = text.find("::install_") != std::string::npos;
    EXPECT_TRUE(is_installer) << "a symbol that other objects may define as well: " << text;
    installers += is_installer ? 1 : 0;
  }
  ASSERT_EQ(pclose(nm), 0) << command;
  EXPECT_GT(objects, 1);
  EXPECT_GE(installers, objects);  // in a unity build an object has those of several files
  EXPECT_GT(installers, 5);
}

}  // namespace
}  // namespace mica
