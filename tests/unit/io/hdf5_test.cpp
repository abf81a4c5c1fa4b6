// SPDX-License-Identifier: Apache-2.0
#include "mica/io/hdf5.hpp"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/core/half.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/crc32c.hpp"
#include "mica/io/raw_file.hpp"

#include "support/temporary_folder.hpp"

namespace mica::io {
namespace {

using test::error_of;
using test::TemporaryFolder;
using ::testing::HasSubstr;
using Dims = std::vector<std::int64_t>;

TEST(Hdf5, RoundTripsEveryTypeAndShape) {
  const TemporaryFolder folder;
  const std::string path = folder / "all.h5";
  const std::vector<FileType> types{FileType::f32, FileType::bf16, FileType::f16, FileType::f64, FileType::i64,
                                    FileType::i32, FileType::u32,  FileType::u16, FileType::u8};
  const std::vector<std::vector<std::int64_t>> shapes{{}, {0}, {1}, {7}, {3, 5}, {2, 0, 3}, {2, 3, 4, 5}, {40000}};
  const auto content = [](std::int64_t bytes, std::size_t salt) {
    std::vector<unsigned char> data(static_cast<std::size_t>(bytes));
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<unsigned char>(i * 7 + salt);
    return data;
  };
  auto file = Hdf5File::create(path);
  for (std::size_t t = 0; t < types.size(); ++t) {
    for (std::size_t s = 0; s < shapes.size(); ++s) {
      auto dataset = file.create_dataset(fmt::format("/{}/{}", file_type_name(types[t]), s), types[t], shapes[s]);
      const auto data = content(dataset.bytes(), t * 31 + s);
      dataset.write(data.data(), dataset.bytes());
    }
  }
  file.close();
  const auto back = Hdf5File::open(path);
  EXPECT_EQ(back.list("/").size(), types.size());
  for (std::size_t t = 0; t < types.size(); ++t) {
    for (std::size_t s = 0; s < shapes.size(); ++s) {
      const auto dataset = back.open_dataset(fmt::format("/{}/{}", file_type_name(types[t]), s));
      EXPECT_EQ(dataset.type(), types[t]);
      EXPECT_EQ(dataset.dims(), shapes[s]);
      std::vector<unsigned char> data(static_cast<std::size_t>(dataset.bytes()));
      dataset.read(data.data(), dataset.bytes());
      EXPECT_EQ(data, content(dataset.bytes(), t * 31 + s)) << dataset.name();
      EXPECT_TRUE(dataset.is_contiguous());
      EXPECT_EQ(dataset.file_offset() == -1, dataset.numel() == 0) << dataset.name();
      EXPECT_EQ(dataset.bytes() >= 65536 ? dataset.file_offset() % 4096 : 0, 0);
    }
  }
}

TEST(Hdf5, DTypesMapBothWays) {
  const TemporaryFolder folder;
  auto file = Hdf5File::create(folder / "x.h5");
  for (const DType d : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i64, DType::i32, DType::u16, DType::u8}) {
    const auto dataset = file.create_dataset(std::string("/") + std::string(dtype_name(d)), d, {3});
    EXPECT_EQ(dataset.dtype(), d);
    EXPECT_EQ(dataset.bytes(), 3 * dtype_bytes(d));
  }
  const auto tokens = file.create_dataset("/tokens", FileType::u32, {3});
  EXPECT_THAT(error_of<Hdf5Error>([&] { (void)tokens.dtype(); }), HasSubstr("uint32"));
}

TEST(Hdf5, RangesOfOneDimension) {
  const TemporaryFolder folder;
  auto file = Hdf5File::create(folder / "x.h5");
  auto line = file.create_dataset("/line", DType::i32, {10});
  std::vector<std::int32_t> ten(10, 0);
  line.write(ten.data(), 40);
  const std::vector<std::int32_t> three{7, 8, 9};
  line.write_range(7, 3, three.data());
  line.write_range(10, 0, nullptr);
  line.read(ten.data(), 40);
  EXPECT_EQ(ten, (std::vector<std::int32_t>{0, 0, 0, 0, 0, 0, 0, 7, 8, 9}));

  auto grid = file.create_dataset("/grid", DType::i32, {3, 4});
  EXPECT_THAT(error_of<Hdf5Error>([&] { line.write_range(8, 3, three.data()); }),
              ::testing::AllOf(HasSubstr("x.h5"), HasSubstr("/line"), HasSubstr("[10]")));
  EXPECT_THROW(line.write_range(-1, 1, three.data()), Hdf5Error);
  EXPECT_THROW(line.write_range(0, -1, three.data()), Hdf5Error);
  EXPECT_THROW(grid.write_range(0, 1, three.data()), Hdf5Error);
  EXPECT_THAT(error_of<Hdf5Error>([&] { line.read(ten.data(), 20); }), HasSubstr("40 bytes"));
}

TEST(Hdf5, AttributesAndStrings) {
  const TemporaryFolder folder;
  const std::string path = folder / "x.h5";
  const std::vector<std::string> names{"h.0.attn.c_attn.weight", "", "\xC3\xA9t\xC3\xA9", std::string(1000, 'x')};
  const std::string long_text(200000, 'y');  // past the 64 KiB of the old format
  {
    auto file = Hdf5File::create(path);
    (void)file.create_dataset("/d", DType::f32, {1});
    file.set_attribute("/", "config", long_text);
    file.set_attribute("/d", "unit", "first");
    file.set_attribute("/d", "unit", "");
    file.set_attribute("/d", "step", std::int64_t{-1} << 62);
    file.write_strings("/names", names);
    file.write_strings("/none", {});
    file.close();
    file.close();
  }
  const auto file = Hdf5File::open(path);
  EXPECT_EQ(file.string_attribute("/", "config"), long_text);
  EXPECT_EQ(file.string_attribute("/d", "unit"), "");
  EXPECT_EQ(file.int_attribute("/d", "step"), std::int64_t{-1} << 62);
  EXPECT_EQ(file.read_strings("/names"), names);
  EXPECT_TRUE(file.read_strings("/none").empty());
  EXPECT_TRUE(file.has_attribute("/d", "step"));
  EXPECT_FALSE(file.has_attribute("/d", "other"));
  EXPECT_THROW((void)file.int_attribute("/d", "unit"), Hdf5Error);
  EXPECT_THROW((void)file.string_attribute("/d", "step"), Hdf5Error);
  EXPECT_THROW((void)file.read_strings("/d"), Hdf5Error);
  EXPECT_TRUE(file.exists("/"));
  EXPECT_TRUE(file.exists("/names"));
  EXPECT_FALSE(file.exists("/a/b/c"));
}

TEST(Hdf5, ErrorsNameFileObjectCallAndCauseInOneLine) {
  const TemporaryFolder folder;
  const std::string missing = error_of<Hdf5Error>([&] { (void)Hdf5File::open(folder / "absent.h5"); });
  EXPECT_THAT(missing, HasSubstr("absent.h5"));
  EXPECT_THAT(missing, HasSubstr("H5Fopen"));
  EXPECT_THAT(missing, HasSubstr("No such file"));
  EXPECT_EQ(missing.find('\n'), std::string::npos);

  std::ofstream(folder / "text.h5") << "not HDF5 at all";
  EXPECT_THAT(error_of<Hdf5Error>([&] { (void)Hdf5File::open(folder / "text.h5"); }), HasSubstr("signature"));
  EXPECT_THAT(error_of<Hdf5Error>([&] { (void)Hdf5File::create(folder / "no/such/x.h5"); }), HasSubstr("no/such/x.h5"));

  auto file = Hdf5File::create(folder / "x.h5");
  EXPECT_THAT(error_of<Hdf5Error>([&] { (void)file.open_dataset("/nowhere"); }),
              ::testing::AllOf(HasSubstr("x.h5"), HasSubstr("/nowhere"), HasSubstr("H5Dopen2")));
  (void)file.create_dataset("/d", DType::f32, {2});
  EXPECT_THROW((void)file.create_dataset("/d", DType::f32, {2}), Hdf5Error);
  EXPECT_THROW((void)file.create_dataset("/e", DType::f32, {-1}), Hdf5Error);
  EXPECT_THROW((void)file.create_dataset("/f", FileType::other, {1}), Hdf5Error);
  file.close();
  const auto read_only = Hdf5File::open(folder / "x.h5");
  const float values[2] = {1, 2};
  EXPECT_THAT(error_of<Hdf5Error>([&] { read_only.open_dataset("/d").write(values, 8); }), HasSubstr("H5Dwrite"));
}

TEST(Hdf5, CloseRefusesWhileADatasetIsOpen) {
  const TemporaryFolder folder;
  auto file = Hdf5File::create(folder / "x.h5");
  {
    const auto dataset = file.create_dataset("/d", DType::f32, {2});
    EXPECT_THAT(error_of<Hdf5Error>([&] { file.close(); }), HasSubstr("still open"));
  }
  file.close();
}

TEST(Hdf5, HandlesMove) {
  const TemporaryFolder folder;
  auto file = Hdf5File::create(folder / "x.h5");
  auto other = std::move(file);
  auto d = other.create_dataset("/d", DType::u8, {4});
  auto e = std::move(d);
  e.write("abcd", 4);
  d = std::move(e);
  char text[5] = {};
  d.read(text, 4);
  EXPECT_STREQ(text, "abcd");
}

TEST(Hdf5, TheSameContentGivesTheSameBytes) {
  const TemporaryFolder folder;
  for (const std::string name : {"a.h5", "b.h5"}) {
    auto file = Hdf5File::create(folder / name);
    file.create_dataset("/g/d", DType::u8, {4}).write("abcd", 4);
    file.set_attribute("/g", "text", "hello");
    file.set_attribute("/", "number", std::int64_t{7});
    file.write_strings("/names", {"x", "yy"});
    file.close();
    std::this_thread::sleep_for(std::chrono::milliseconds(name == "a.h5" ? 1100 : 0));  // time stamps have seconds
  }
  EXPECT_TRUE(read_file(folder / "a.h5") == read_file(folder / "b.h5"));  // not EXPECT_EQ: it would print both
}

TEST(Hdf5, RawWritesAtTheFileOffsetAreTheDataset) {
  const TemporaryFolder folder;
  const std::string path = folder / "x.h5";
  std::vector<float> data(50000);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
  auto file = Hdf5File::create(path);
  (void)file.create_dataset("/small", DType::f32, {3});
  const std::int64_t offset = file.create_dataset("/w", DType::f32, {50000}).file_offset();
  file.close();
  ASSERT_GT(offset, 0);
  auto raw = RawFile::open_for_writing(path, Caching::direct);
  raw.write_at(offset, data.data(), 200000);
  raw.sync();
  raw.close();
  std::vector<float> back(50000);
  Hdf5File::open(path).open_dataset("/w").read(back.data(), 200000);
  EXPECT_EQ(back, data);
}

TEST(Hdf5, ChecksumsFindWhatHdf5DoesNot) {
  const TemporaryFolder folder;
  const std::string path = folder / "x.h5";
  std::vector<float> data(20000, 1.5F);
  auto file = Hdf5File::create(path);
  std::int64_t offset = 0;
  {
    auto dataset = file.create_dataset("/w", DType::f32, {20000});
    dataset.write(data.data(), 80000);
    offset = dataset.file_offset();
  }
  file.close();
  const std::uint32_t good = crc32c(data.data(), 80000);
  auto raw = RawFile::open_for_writing(path);
  raw.write_at(offset + 40001, "\x42", 1);
  raw.close();
  Hdf5File::open(path).open_dataset("/w").read(data.data(), 80000);  // no error: HDF5 does not notice
  EXPECT_NE(crc32c(data.data(), 80000), good);
}

TEST(Hdf5, FilesOnManyThreads) {
  const TemporaryFolder folder;
  std::vector<std::thread> threads;
  std::vector<int> num_good(4, 0);
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const std::string path = folder / fmt::format("t{}.h5", t);
        auto file = Hdf5File::create(path);
        file.create_dataset("/d", DType::u8, {4}).write("abcd", 4);
        file.close();
        char text[4] = {};
        Hdf5File::open(path).open_dataset("/d").read(text, 4);
        const bool missing_is_an_error = !Hdf5File::open(path).exists("/e");
        num_good[t] += std::memcmp(text, "abcd", 4) == 0 && missing_is_an_error ? 1 : 0;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(num_good, (std::vector<int>(4, 20)));
}

/// What other software sees. h5py is in the list of packages that tests need.
TEST(Hdf5, PythonReadsTypesAttributesAndStrings) {
  const TemporaryFolder folder;
  const std::string path = folder / "x.h5";
  auto file = Hdf5File::create(path);
  const std::vector<bf16> halves{bf16(1.5F), bf16(-2.0F), bf16(0.0F), bf16(3e38F)};
  file.create_dataset("/g/bf16", DType::bf16, {2, 2}).write(halves.data(), 8);
  const std::vector<f16> sixteen{f16(0.5F), f16(65504.0F)};
  file.create_dataset("/f16", DType::f16, {2}).write(sixteen.data(), 4);
  file.set_attribute("/", "config", "a=1\nb=\xC3\xA9");
  file.set_attribute("/g", "step", std::int64_t{500});
  file.write_strings("/names", {"wte.weight", "wpe.weight"});
  file.close();
  const std::string script = folder / "check.py";
  std::ofstream(script) << "import h5py, sys\n"
                           "f = h5py.File(sys.argv[1], 'r')\n"
                           "b = f['/g/bf16'][()]\n"
                           "assert b.shape == (2, 2) and b[0,0] == 1.5 and b[0,1] == -2 and b[1,0] == 0, b\n"
                           "assert abs(b[1,1] - 3e38) < 1e36, b\n"
                           "assert str(f['/f16'].dtype) == 'float16' and list(f['/f16']) == [0.5, 65504.0]\n"
                           "assert f.attrs['config'] == 'a=1\\nb=\\u00e9', f.attrs['config']\n"
                           "assert f['g'].attrs['step'] == 500\n"
                           "assert list(f['names'].asstr()) == ['wte.weight', 'wpe.weight']\n";
  EXPECT_EQ(std::system(fmt::format("/usr/bin/python3 {} {}", script, path).c_str()), 0);
  EXPECT_EQ(std::system(fmt::format("h5dump -A {} > /dev/null", path).c_str()), 0);
}

TEST(Hdf5, ReadsWhatPythonWrites) {
  const TemporaryFolder folder;
  const std::string path = folder / "x.h5";
  const std::string script = folder / "make.py";
  std::ofstream(script) << "import h5py, numpy as np, sys\n"
                           "f = h5py.File(sys.argv[1], 'w')\n"
                           "f.create_dataset('v', data=['ab', 'cde'], dtype=h5py.string_dtype())\n"
                           "f.create_dataset('chunked', data=np.arange(100, dtype=np.uint16), chunks=(10,))\n"
                           "f.create_dataset('big', data=np.arange(3, dtype='>i4'))\n"
                           "f.create_dataset('empty', data=h5py.Empty('f'))\n"
                           "h5py.File(sys.argv[1] + '.other', 'w')['values'] = np.arange(10, dtype=np.uint16)\n"
                           "f['linked'] = h5py.ExternalLink(sys.argv[1] + '.other', '/values')\n"
                           "f.attrs['small'] = np.uint8(200)\n"
                           "f.attrs['fixed'] = np.bytes_('bytes')\n"
                           "f.attrs['two'] = np.array([1, 2])\n";
  ASSERT_EQ(std::system(fmt::format("/usr/bin/python3 {} {}", script, path).c_str()), 0);
  const auto file = Hdf5File::open(path);
  EXPECT_EQ(file.read_strings("/v"), (std::vector<std::string>{"ab", "cde"}));
  const auto chunked = file.open_dataset("/chunked");
  EXPECT_FALSE(chunked.is_contiguous());
  EXPECT_EQ(chunked.file_offset(), -1);
  std::vector<std::uint16_t> values(100);
  chunked.read(values.data(), 200);
  EXPECT_EQ(values[99], 99);
  const auto linked = file.open_dataset("/linked");
  EXPECT_FALSE(linked.is_contiguous()) << "in this file";
  EXPECT_EQ(linked.file_offset(), -1);
  linked.read(values.data(), 20);
  EXPECT_EQ(values[9], 9);
  EXPECT_EQ(file.open_dataset("/big").type(), FileType::other);
  EXPECT_EQ(file.open_dataset("/empty").numel(), 0);
  EXPECT_EQ(file.int_attribute("/", "small"), 200);
  EXPECT_EQ(file.string_attribute("/", "fixed"), "bytes");
  EXPECT_THROW((void)file.int_attribute("/", "two"), Hdf5Error);
}

}  // namespace
}  // namespace mica::io
