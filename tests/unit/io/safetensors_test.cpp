// SPDX-License-Identifier: Apache-2.0
#include "mica/io/safetensors.hpp"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/io/atomic_file.hpp"

#include "support/paths.hpp"
#include "support/temporary_folder.hpp"

namespace mica::io {
namespace {

using test::error_of;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Made by the safetensors package: tests/reference/make_safetensors_reference.py.
const std::string kPackageFile = test::reference_path("package.safetensors");
const std::vector<float> kSpecial = {0.0F,     -0.0F, INFINITY,     -INFINITY, 0x1p-24F /* 6e-8, the smallest fp16 */,
                                     65504.0F, -1.5F, 1.0009765625F};

std::vector<float> read_all(SafetensorsFile& file, const SafetensorsEntry& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.numel));
  file.read(tensor, 0, tensor.numel, values.data());
  return values;
}

/// A file with this header and this many bytes of data.
std::string file_text(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  return text + header + std::string(data_bytes, '\1');
}

TEST(Safetensors, ReadsWhatThePackageWrote) {
  SafetensorsFile file(kPackageFile);
  EXPECT_THAT(file.metadata(), ElementsAre(::testing::Pair("format", "pt")));
  ASSERT_EQ(file.tensors().size(), 9U);
  EXPECT_THAT(file.find("matrix")->dims, ElementsAre(5, 7));
  EXPECT_THAT(file.find("four")->dims, ElementsAre(2, 3, 1, 5));
  EXPECT_THAT(file.find("scalar")->dims, ElementsAre());
  EXPECT_EQ(file.find("scalar")->numel, 1);
  EXPECT_EQ(file.find("empty")->numel, 0);
  EXPECT_EQ(file.find("four")->dtype, "BF16");
  EXPECT_EQ(file.find("half")->mica_dtype(), DType::f16);
  EXPECT_NE(file.find("größe"), nullptr);
  EXPECT_NE(file.find("a \"quoted\" \\ name\n"), nullptr);
  EXPECT_EQ(file.find("matrix2"), nullptr);
  for (const SafetensorsEntry& tensor : file.tensors()) {
    const std::vector<float> values = read_all(file, tensor);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float expected = tensor.name == "special" ? kSpecial[i] : static_cast<float>(i) / 8 - 3;
      EXPECT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(expected)) << tensor.name << " " << i;
    }
  }
  // A range in the middle.
  float two[2] = {};
  file.read(*file.find("four"), 27, 2, two);
  EXPECT_THAT(two, ElementsAre(27.0F / 8 - 3, 28.0F / 8 - 3));
}

TEST(Safetensors, WritesTheSameBytesAsThePackage) {
  const TemporaryFolder folder;
  SafetensorsFile file(kPackageFile);
  std::vector<SafetensorsSpec> specs;
  for (const SafetensorsEntry& tensor : file.tensors()) specs.insert(specs.begin(), {tensor.name, *tensor.mica_dtype(), tensor.dims});
  SafetensorsWriter writer(folder / "copy", specs, file.metadata());
  for (const SafetensorsEntry& tensor : file.tensors()) {
    const std::vector<float> values = read_all(file, tensor);
    // Back to front, in ranges of at most 3 elements.
    for (std::int64_t end = tensor.numel; end > 0; end -= std::min<std::int64_t>(end, 3)) {
      const std::int64_t begin = std::max<std::int64_t>(0, end - 3);
      writer.write(tensor.name, begin, end - begin, values.data() + begin);
    }
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "copy"));
  writer.finish();
  EXPECT_EQ(read_file(folder / "copy"), read_file(kPackageFile));
  EXPECT_FALSE(std::filesystem::exists(folder / "copy.tmp"));
}

TEST(Safetensors, LongTensorsAreConvertedPieceByPiece) {
  const TemporaryFolder folder;
  constexpr std::int64_t kNumel = (1 << 21) + 7;  // more than two pieces of a conversion
  std::vector<float> values(kNumel);
  for (std::int64_t i = 0; i < kNumel; ++i) values[static_cast<std::size_t>(i)] = static_cast<float>(i % 251) - 125;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    SafetensorsWriter writer(folder / "long", {{"w", dtype, {kNumel}}}, {});
    writer.write("w", 0, kNumel, values.data());
    writer.finish();
    SafetensorsFile file(folder / "long");
    EXPECT_TRUE(file.metadata().empty());
    EXPECT_EQ(read_all(file, *file.find("w")), values);
  }
}

TEST(Safetensors, RoundsToNearestEven) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "x", {{"w", DType::bf16, {4}}, {"h", DType::f16, {2}}}, {});
  const float bf[4] = {1.00390625F, 1.01171875F, 1.0039064F, std::numeric_limits<float>::quiet_NaN()};
  const float half[2] = {2049.0F, 70000.0F};
  writer.write("w", 0, 4, bf);
  writer.write("h", 0, 2, half);
  writer.finish();
  SafetensorsFile file(folder / "x");
  const std::vector<float> w = read_all(file, *file.find("w"));
  EXPECT_EQ(w[0], 1.0F);        // a tie, down to even
  EXPECT_EQ(w[1], 1.015625F);   // a tie, up to even
  EXPECT_EQ(w[2], 1.0078125F);  // above the tie
  EXPECT_TRUE(std::isnan(w[3]));
  EXPECT_THAT(read_all(file, *file.find("h")), ElementsAre(2048.0F, INFINITY));
}

TEST(Safetensors, AnUnfinishedFileLeavesNothing) {
  const TemporaryFolder folder;
  {
    SafetensorsWriter writer(folder / "x", {{"a", DType::f32, {2}}, {"b", DType::f32, {3}}}, {});
    const float value[2] = {1, 2};
    writer.write("a", 0, 2, value);
    writer.write("b", 1, 2, value);
    EXPECT_THAT(error_of<Error>([&] { writer.finish(); }), HasSubstr("2 of the 3 elements of tensor 'b' were written"));
    EXPECT_THAT(error_of<Error>([&] { writer.write("c", 0, 1, value); }), HasSubstr("'c' was not announced"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_THAT(error_of<Error>([&] {
                SafetensorsWriter(folder / "x", {{"a", DType::f32, {}}, {"a", DType::bf16, {}}}, {});
              }),
              HasSubstr("'a' cannot be written, or not twice"));
  EXPECT_THAT(error_of<Error>([&] { SafetensorsWriter(folder / "x", {{"a", DType::f64, {}}}, {}); }), HasSubstr("fp64"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Safetensors, OtherTypesAreCheckedButNotRead) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "x", file_text(R"({"mask":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]},)"
                                                R"("ids":{"dtype":"I64","shape":[1],"data_offsets":[3,11]}})",
                                                11));
  SafetensorsFile file(folder / "x");
  EXPECT_FALSE(file.find("ids")->mica_dtype().has_value());
  float value = 0;
  EXPECT_THAT(error_of<CheckpointError>([&] { file.read(*file.find("ids"), 0, 1, &value); }),
              AllOf(HasSubstr(folder / "x"), HasSubstr("tensor 'ids' has the dtype I64; Mica reads F32, BF16 and F16")));
}

struct BadHeader {
  const char* what;
  std::string header;
  std::size_t data_bytes;
  const char* expected;
};

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape, offsets);
}

std::vector<BadHeader> bad_headers() {
  const std::string good = tensor("a", "F32", "[2]", "[0,8]");
  const auto object = [](const std::string& text) { return "{" + text + "}"; };
  return {
      {"brace", " {" + good + "}", 8, "does not begin with {"},
      {"list", "[1]", 0, "does not begin with {"},
      {"json", "{" + good, 8, "is no valid JSON at byte"},
      {"behind", object(good) + "x", 8, "is no valid JSON at byte"},
      {"nul", object(good) + std::string(1, '\0') + "x", 8, "holds a NUL byte"},
      {"utf8", object(tensor("\xff", "F32", "[2]", "[0,8]")), 8, "is no valid JSON at byte"},
      {"twice", object(good + "," + tensor("a", "F32", "[2]", "[8,16]")), 16, "names 'a' twice"},
      {"twice_escaped", object(good + "," + tensor("\\u0061", "F32", "[2]", "[8,16]")), 16, "names 'a' twice"},
      {"two_metadata", object(R"("__metadata__":{},"__metadata__":{},)" + good), 8, "names '__metadata__' twice"},
      {"metadata_key", object(R"("__metadata__":{"k":"1","k":"2"},)" + good), 8, "has the metadata key 'k' twice"},
      {"metadata_number", object(R"("__metadata__":{"k":1},)" + good), 8, "has the number 1 in \"__metadata__\""},
      {"metadata_object", object(R"("__metadata__":{"k":{}},)" + good), 8, "has an object in \"__metadata__\""},
      {"metadata_list", object(R"("__metadata__":["k"],)" + good), 8, "has a list in \"__metadata__\""},
      {"no_object", object(R"("a":3)"), 0, "tensor 'a' is the number 3, expected an object"},
      {"dtype_twice", object(R"("a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})"), 8, "tensor 'a' has \"dtype\" twice"},
      {"no_dtype", object(R"("a":{"shape":[2],"data_offsets":[0,8]})"), 8, "tensor 'a' has no \"dtype\""},
      {"no_shape", object(R"("a":{"dtype":"F32","data_offsets":[0,8]})"), 8, "tensor 'a' has no \"shape\""},
      {"no_offsets", object(R"("a":{"dtype":"F32","shape":[2]})"), 8, "tensor 'a' has no \"data_offsets\""},
      {"unknown_key", object(R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})"), 8, "tensor 'a' has 'x'"},
      {"dtype_number", object(R"("a":{"dtype":32,"shape":[2],"data_offsets":[0,8]})"), 8, "tensor 'a' has the number 32 in \"dtype\""},
      {"dtype_unknown", object(tensor("a", "F31", "[2]", "[0,8]")), 8, "tensor 'a' has the dtype 'F31', which the format does not know"},
      {"dtype_case", object(tensor("a", "f32", "[2]", "[0,8]")), 8, "the dtype 'f32'"},
      {"shape_text", object(tensor("a", "F32", "\"2\"", "[0,8]")), 8, "tensor 'a' has the text '2' in \"shape\""},
      {"shape_nested", object(tensor("a", "F32", "[[2]]", "[0,8]")), 8, "tensor 'a' has a list in \"shape\""},
      {"shape_null", object(tensor("a", "F32", "[null]", "[0,8]")), 8, "tensor 'a' has null in \"shape\""},
      {"shape_true", object(tensor("a", "F32", "[true]", "[0,8]")), 8, "tensor 'a' has true in \"shape\""},
      {"shape_negative", object(tensor("a", "F32", "[-2]", "[0,8]")), 8, "tensor 'a' has the number -2 in \"shape\""},
      {"shape_real", object(tensor("a", "F32", "[2.0]", "[0,8]")), 8, "tensor 'a' has the number 2.0 in \"shape\""},
      {"shape_huge", object(tensor("a", "F32", "[9223372036854775808]", "[0,8]")), 8, "9223372036854775808, past any file"},
      {"shape_long", object(tensor("a", "F32", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,4]")), 4,
       "tensor 'a' has more than 32 numbers in \"shape\""},
      {"numel_overflow", object(tensor("a", "F32", "[4294967296,4294967296]", "[0,8]")), 8,
       "tensor 'a' has the shape [4294967296, 4294967296]"},
      {"numel_overflow_zero", object(tensor("a", "F32", "[4294967296,4294967296,0]", "[0,0]")), 0, "too many elements to count"},
      {"bytes_overflow", object(tensor("a", "F64", "[4611686018427387904]", "[0,8]")), 8, "too many elements to count"},
      {"half_bytes", object(tensor("a", "F4", "[3]", "[0,2]")), 2, "tensor 'a' of dtype F4 ends inside a byte"},
      {"offsets_one", object(tensor("a", "F32", "[2]", "[8]")), 8, "tensor 'a' has 1 data_offsets"},
      {"offsets_three", object(tensor("a", "F32", "[2]", "[0,8,8]")), 8, "tensor 'a' has more than 2 numbers"},
      {"offsets_huge", object(tensor("a", "F32", "[0]", "[9223372036854775807,9223372036854775807]")), 8, "past any file"},
      {"backwards", object(tensor("a", "F32", "[2]", "[8,0]")), 8, "tensor 'a' has the data_offsets [8, 0], which end before"},
      {"shape_bytes", object(tensor("a", "F32", "[3]", "[0,8]")), 8, "tensor 'a' has 8 bytes of data ([0, 8]), but F32 [3] takes 12"},
      {"dtype_bytes", object(tensor("a", "BF16", "[2]", "[0,8]")), 8, "tensor 'a' has 8 bytes of data ([0, 8]), but BF16 [2] takes 4"},
      {"hole_first", object(tensor("a", "F32", "[2]", "[4,12]")), 12, "tensor 'a' begins at byte"},
      {"hole", object(good + "," + tensor("b", "F32", "[1]", "[12,16]")), 16, "the format allows no hole"},
      {"overlap", object(good + "," + tensor("b", "F32", "[1]", "[4,8]")), 8, "tensor 'b' begins at byte"},
      {"same_place", object(good + "," + tensor("b", "F32", "[2]", "[0,8]")), 8, "inside tensor 'a'"},
      {"truncated", object(good), 7, "but tensor 'a' ends at byte"},
      {"too_long", object(good), 9, "but its tensors end at byte"},
      {"nothing_but_data", "{}", 4, "but its tensors end at byte"},
      {"line_break", object(tensor("a\\nb", "F31", "[2]", "[0,8]")), 8, "tensor 'a\\x0ab' has"},
  };
}

class BadSafetensors : public ::testing::TestWithParam<BadHeader> {};

TEST_P(BadSafetensors, IsRefusedByFileAndTensor) {
  const TemporaryFolder folder;
  const std::string path = folder / "bad.safetensors";
  write_file_atomically(path, file_text(GetParam().header, GetParam().data_bytes));
  EXPECT_THAT(error_of<CheckpointError>([&] { SafetensorsFile file(path); }),
              AllOf(HasSubstr(path + ": "), HasSubstr(GetParam().expected), ::testing::Not(HasSubstr("\n"))));
}

INSTANTIATE_TEST_SUITE_P(Safetensors, BadSafetensors, ::testing::ValuesIn(bad_headers()),
                         [](const auto& info) { return std::string(info.param.what); });

TEST(Safetensors, AHeaderOfAWrongLengthIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder / "x";
  const auto opened = [&](const std::string& bytes) {
    write_file_atomically(path, bytes);
    return error_of<CheckpointError>([&] { SafetensorsFile file(path); });
  };
  EXPECT_THAT(opened(""), HasSubstr("has 0 bytes"));
  EXPECT_THAT(opened("123456789"), HasSubstr("has 9 bytes, a safetensors file has 10 or more"));
  EXPECT_THAT(opened(std::string("\1\xe1\xf5\5\0\0\0\0", 8) + "{}"), HasSubstr("100000001 bytes, the format allows 100000000"));
  EXPECT_THAT(opened(std::string(8, '\xff') + "{}"), HasSubstr("18446744073709551615 bytes"));
  EXPECT_THAT(opened(std::string("\3\0\0\0\0\0\0\0", 8) + "{}"), HasSubstr("3 bytes, but the file ends after 2"));
  EXPECT_THAT(error_of<IoError>([&] { SafetensorsFile file(folder / "missing"); }), HasSubstr("missing"));
}

// Any prefix of a file is refused: nothing is read as if it were there.
TEST(Safetensors, EveryTruncationIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder / "x";
  std::filesystem::copy_file(kPackageFile, path);
  for (std::uintmax_t length = std::filesystem::file_size(path); length-- > 0;) {
    std::filesystem::resize_file(path, length);
    EXPECT_THROW(SafetensorsFile file(path), CheckpointError) << length;
  }
}

}  // namespace
}  // namespace mica::io
