// SPDX-License-Identifier: Apache-2.0
// Every earlier format that Mica reads has a stored sample, which fault.old_formats resumes.

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/checkpoint/verify.hpp"

#include "support/paths.hpp"

namespace mica::checkpoint {
namespace {

TEST(Formats, EarlierOnesHaveASample) {
  for (std::int64_t version = kOldestFormatVersion; version < kFormatVersion; ++version) {
    const std::string sample = test::reference_path(fmt::format("checkpoint_format_{}", version));
    ASSERT_TRUE(std::filesystem::is_directory(sample))
        << sample << " is missing: tests/reference/make_checkpoint_sample.sh makes it with a build of that format";
    const Manifest manifest = read_manifest(sample + "/checkpoints/step-00000005");
    EXPECT_EQ(manifest.step, 5);
    EXPECT_EQ(manifest.tokens, 160);
    EXPECT_EQ(manifest.optimizer_steps, 5);
    EXPECT_EQ(manifest.parameter_steps.at("transformer.ln_f.bias"), 0);
    EXPECT_EQ(manifest.files.size(), 2U);
    EXPECT_THAT(verify(sample + "/checkpoints/step-00000005").damage, ::testing::IsEmpty());
  }
}

}  // namespace
}  // namespace mica::checkpoint
