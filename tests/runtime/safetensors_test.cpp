#include "sluice/runtime/files/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <ctime>
#include <filesystem>

#include "support/golden.h"
#include "support/run_sluice.h"

namespace sluice::test {
namespace {

std::string with_size(const std::string& json, const std::string& buffer = "") {
  std::string size(8, '\0');
  const std::uint64_t n = json.size();
  std::memcpy(size.data(), &n, 8);
  return size + json + buffer;
}

std::ptrdiff_t num_files(const std::string& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

std::span<const std::byte> bytes_of(const std::string& text) { return as_byte_span(text); }

std::string read_all(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo* tensor = file.find(name);
  if (tensor == nullptr) return "(none)";
  std::string out(tensor->bytes, '\0');
  file.read(*tensor, std::as_writable_bytes(std::span(out)));
  return out;
}

// "" when it is read, else what the user is told.
std::string refusal(const std::string& content) {
  const TemporaryFolder scratch;
  const std::string path = scratch.write("x.safetensors", content);
  try {
    const SafetensorsFile file(path);
    return "";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    return error.what();
  }
}

void expect_refused(const std::string& content, const std::string& reason) {
  EXPECT_NE(refusal(content).find(reason), std::string::npos)
      << "expected: " << reason << "\nhave: '" << refusal(content) << "'";
}

std::string entry(const std::string& shape, const std::string& offsets,
                  const std::string& dtype = "F32") {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

// A file of one tensor "a" with `buffer` bytes.
std::string one(const std::string& shape, const std::string& offsets, std::size_t buffer,
                const std::string& dtype = "F32") {
  return with_size(R"({"a":)" + entry(shape, offsets, dtype) + "}", std::string(buffer, 'x'));
}

const std::string kGoldenJson = R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                R"("a":{"dtype":"BF16","shape":[1],"data_offsets":[8,10]}}   )";
const std::string kGoldenData("\x00\x00\x80\x3f\x00\x00\x00\xc0\x80\x3f", 10);

TEST(Safetensors, WritesTheGoldenFileByteForByte) {
  const TemporaryFolder scratch;
  RealFileSystem files;
  const std::string path = scratch.path() + "/x.safetensors";
  SafetensorsWriter writer(files, path, {{"a", Dtype::bf16, {1}}, {"b", Dtype::f32, {2}}});
  ASSERT_EQ(writer.tensors()[0].name, "b");
  writer.write(bytes_of(kGoldenData.substr(0, 3)));  // pieces of any size
  writer.write(bytes_of(kGoldenData.substr(3, 5)));
  writer.write(bytes_of(kGoldenData.substr(8)));
  EXPECT_FALSE(std::filesystem::exists(path));
  const WrittenFile written = writer.commit();
  const std::string golden = with_size(kGoldenJson, kGoldenData);
  EXPECT_EQ(golden.size(), 130U);
  EXPECT_EQ(read_text(path), golden);
  EXPECT_EQ(written.bytes, 130U);
  EXPECT_EQ(written.sha256, sha256_hex(golden));
}

TEST(Safetensors, ReadsTheGoldenFile) {
  const TemporaryFolder scratch;
  const SafetensorsFile file(scratch.write("x", with_size(kGoldenJson, kGoldenData)));
  ASSERT_EQ(file.tensors().size(), 2U);
  const TensorInfo& b = file.tensors()[0];
  EXPECT_EQ(b, (TensorSpec{"b", Dtype::f32, {2}}));
  EXPECT_EQ(b.offset, 120U);
  EXPECT_EQ(b.bytes, 8U);
  EXPECT_EQ(read_all(file, "a"), kGoldenData.substr(8));
  EXPECT_EQ(read_all(file, "b"), kGoldenData.substr(0, 8));
  EXPECT_EQ(file.find("c"), nullptr);
}

TEST(Safetensors, EveryDtypeNameAndSizeReadsBack) {
  for (int i = 0; i <= static_cast<int>(Dtype::u64); ++i) {
    const auto dtype = static_cast<Dtype>(i);
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
    EXPECT_EQ(
        refusal(one("[8]", fmt::format("[0,{}]", dtype_bits(dtype)),
                    static_cast<std::size_t>(dtype_bits(dtype)), std::string(dtype_name(dtype)))),
        "");
  }
  EXPECT_EQ(dtype_bits(Dtype::f4), 4);
  EXPECT_EQ(dtype_bits(Dtype::f6_e3m2), 6);
  EXPECT_EQ(dtype_bits(Dtype::bf16), 16);
  EXPECT_EQ(dtype_name(Dtype::f8_e5m2fnuz), "F8_E5M2FNUZ");
}

TEST(Safetensors, WriterOrdersByDtypeThenName) {
  const TemporaryFolder scratch;
  RealFileSystem files;
  const SafetensorsWriter writer(files, scratch.path() + "/x",
                                 {{"q", Dtype::boolean, {0}},
                                  {"z", Dtype::f32, {0}},
                                  {"b", Dtype::f32, {0}},
                                  {"u", Dtype::u64, {0}},
                                  {"h", Dtype::bf16, {0}}});
  std::string order;
  for (const TensorInfo& tensor : writer.tensors())
    order += tensor.name;
  EXPECT_EQ(order, "ubzhq");
}

TEST(Safetensors, NamesAndMetadataOfAnyTextReadBack) {
  const TemporaryFolder scratch;
  RealFileSystem files;
  const std::string path = scratch.path() + "/x";
  const std::map<std::string, std::string> metadata = {{"format", "pt"},
                                                       {"quote \" \\", "line\nline\t\x01 ü 😀"}};
  const std::string name = "layer \"0\" \\ ü 😀";
  SafetensorsWriter writer(files, path, {{name, Dtype::u8, {}}}, metadata);
  writer.write(bytes_of("!"));
  writer.commit();
  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata(), metadata);
  EXPECT_EQ(read_all(file, name), "!");
  EXPECT_EQ(file.tensors()[0].offset % 8, 0U);
}

TEST(Safetensors, LegalOdditiesAreRead) {
  EXPECT_EQ(refusal(with_size("{}")), "");
  EXPECT_EQ(refusal(with_size("{}     ")), "");
  EXPECT_EQ(refusal(one("[]", "[0,4]", 4)), "");     // one element
  EXPECT_EQ(refusal(one("[0,5]", "[0,0]", 0)), "");  // none
  EXPECT_EQ(refusal(with_size(R"({"a":)" + entry("[1]", "[0,4]") + R"(,"z":)" +
                                  entry("[0]", "[4,4]") + R"(,"b":)" + entry("[1]", "[4,8]") + "}",
                              "12345678")),
            "");
  EXPECT_EQ(refusal(with_size(R"({ "\u0061\ud83d\ude00" : )" + entry("[ 1 ]", "[ 0 , 4 ]") + " }",
                              "1234")),
            "");
  std::string shape = "[1";
  for (int i = 1; i < 64; ++i)
    shape += ",1";
  EXPECT_EQ(refusal(one(shape + "]", "[0,4]", 4)), "");
  expect_refused(one(shape + ",1]", "[0,4]", 4), "more than 64 dimensions");
}

TEST(Safetensors, HeaderSizesThatCannotBeAreRefused) {
  expect_refused("", "0 bytes");
  expect_refused("1234567", "7 bytes");
  for (const std::uint64_t n : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 63,
                                ~std::uint64_t{0}, std::uint64_t{100'000'001}}) {
    std::string text(8, '\0');
    std::memcpy(text.data(), &n, 8);
    expect_refused(text + "{}", fmt::format("a header of {} bytes: needs 2 to 100000000", n));
  }
  std::string longer = with_size(std::string("{}") + std::string(98, ' '));
  longer.pop_back();
  expect_refused(longer, "a header of 100 bytes in a file of 107: truncated");
}

TEST(Safetensors, HeadersThatAreNotTheJsonExpectedAreRefused) {
  expect_refused(with_size(" {}"), "begin with '{'");
  expect_refused(with_size("[]"), "begin with '{'");
  expect_refused(with_size("\xEF\xBB\xBF{}"), "begin with '{'");
  expect_refused(with_size("{\"a"), "a string does not end");
  expect_refused(with_size("{]"), "needs '\"'");
  expect_refused(with_size("{} x"), "needs the end");
  expect_refused(with_size(std::string("{}\0", 3)), "needs the end");
  expect_refused(with_size("{\"\xFF\":1}"), "not UTF-8");
  expect_refused(with_size("{\"\xC0\x80\":1}"), "not UTF-8");
  expect_refused(with_size("{\"\xED\xA0\x80\":1}"), "not UTF-8");
  expect_refused(with_size(R"({"\ud800":1})"), "surrogate");
  expect_refused(with_size(R"({"\udc00x":1})"), "surrogate");
  expect_refused(with_size(R"({"\u12g4":1})"), "four hex digits");
  expect_refused(with_size("{\"a\\"), "escape");
  expect_refused(with_size("{\"a\":" + std::string(1'000'000, '[')), "needs '{'");
  expect_refused(with_size(R"({"a":)" + entry(std::string(1'000'000, '['), "[0,4]")),
                 "needs a whole number");
  expect_refused(with_size("{\"a\":{\"a\":{\"a\":1}}}"), "unknown key");
  expect_refused(with_size(R"({"a":1})"), "needs '{'");
}

TEST(Safetensors, DuplicatesAndMissingMembersAreRefused) {
  const std::string e = entry("[0]", "[0,0]");
  expect_refused(with_size(R"({"a":)" + e + R"(,"a":)" + e + "}"), "\"a\" is there twice");
  expect_refused(with_size(R"({"a":)" + e + R"(,"\u0061":)" + e + "}"), "\"a\" is there twice");
  expect_refused(
      with_size(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0],"data_offsets":[0,0]}})"),
      "has data_offsets twice");
  expect_refused(with_size(R"({"__metadata__":{},"__metadata__":{}})"), "twice");
  expect_refused(with_size(R"({"__metadata__":{"a":"1","a":"2"}})"), "\"a\" twice");
  expect_refused(with_size(R"({"__metadata__":{"a":1}})"), "__metadata__ needs '\"'");
  expect_refused(with_size(R"({"__metadata__":"a"})"), "__metadata__ needs '{'");
  expect_refused(with_size(R"({"a":{"dtype":"F32","shape":[0]}})"), "has no data_offsets");
  expect_refused(with_size(R"({"a":{"shape":[0],"data_offsets":[0,0]}})"), "has no dtype");
  expect_refused(with_size(R"({"a":{"dtype":"F32","data_offsets":[0,0]}})"), "has no shape");
}

TEST(Safetensors, ShapesThatCannotBeAreRefused) {
  expect_refused(one("[1]", "[0,4]", 4, "F33"), "unknown dtype \"F33\"");
  expect_refused(one("[-1]", "[0,4]", 4), "needs a whole number");
  expect_refused(one("[1.0]", "[0,4]", 4), "needs a whole number");
  expect_refused(one("[1e0]", "[0,4]", 4), "needs a whole number");
  expect_refused(one("[01]", "[0,4]", 4), "needs a whole number");
  expect_refused(one("[\"1\"]", "[0,4]", 4), "needs a whole number");
  expect_refused(one("1", "[0,4]", 4), "needs '['");
  expect_refused(one("[9223372036854775808]", "[0,4]", 4), "less than 2^63");
  expect_refused(one("[18446744073709551616]", "[0,4]", 4), "needs a whole number");
  // Products that are 4 and 0 when they are not checked.
  expect_refused(one("[4194305,4194305,211106198978564]", "[0,16]", 16),
                 "no whole number of bytes");
  expect_refused(one("[4294967296,4294967296]", "[0,0]", 0), "no whole number of bytes");
  expect_refused(one("[4611686018427387904]", "[0,0]", 0), "no whole number of bytes");
  expect_refused(one("[3]", "[0,1]", 1, "F4"), "no whole number of bytes");
  expect_refused(one("[3]", "[0,8]", 8), "needs 12 bytes, and its data_offsets hold 8");
}

TEST(Safetensors, OffsetsThatDoNotTileTheFileAreRefused) {
  expect_refused(one("[1]", "[4,0]", 4), "begins at 4 and ends before, at 0");
  expect_refused(one("[1]", "[0]", 4), "1 data_offsets: needs 2");
  expect_refused(one("[1]", "[0,4,8]", 4), "3 data_offsets: needs 2");
  expect_refused(one("[1]", "[0,4]", 3), "ends at 4, and the file holds 3 bytes");
  expect_refused(one("[1]", "[0,4]", 5),
                 "end at 4, and it holds 5 bytes after its header: extended");
  expect_refused(one("[1]", "[1,5]", 5), "\"a\" begins at 1, and the header ends at 0: a hole");
  const auto two = [](const std::string& first, const std::string& second, std::size_t size) {
    return with_size(R"({"a":)" + entry("[2]", first) + R"(,"b":)" + entry("[2]", second) + "}",
                     std::string(size, 'x'));
  };
  EXPECT_EQ(refusal(two("[8,16]", "[0,8]", 16)), "");
  expect_refused(two("[0,8]", "[4,12]", 12),
                 "\"b\" begins at 4, and \"a\" ends at 8: they overlap");
  expect_refused(two("[0,8]", "[0,8]", 8), "they overlap");
  expect_refused(two("[0,8]", "[9,17]", 17), "a hole");
  expect_refused(one("[1]", "[18446744073709551612,18446744073709551615]", 4), "needs 4 bytes");
}

TEST(Safetensors, NamesThatMeanHarmAreRefused) {
  const auto named = [](const std::string& name) {
    return with_size("{\"" + name + "\":" + entry("[0]", "[0,0]") + "}");
  };
  EXPECT_EQ(refusal(named("a..b/c")), "");
  expect_refused(named("../x"), "leads out of its folder");
  expect_refused(named("a/../x"), "leads out of its folder");
  expect_refused(named("/x"), "begins with '/'");
  expect_refused(named(""), "is empty");
  expect_refused(named("a\\u0000b"), "control character");
  expect_refused(named("a\nb"), "control character");
  expect_refused(named(std::string(1'000'000, 'n')), "has 1000000 bytes");
}

TEST(Safetensors, ThingsThatAreNotFilesAreRefusedWithoutBlocking) {
  const TemporaryFolder scratch;
  const auto told = [&](const std::string& path, Symlinks symlinks) -> std::string {
    try {
      const SafetensorsFile file(path, symlinks);
      return "";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      return error.what();
    }
  };
  const std::string good = scratch.write("good", with_size("{}"));
  const std::string link = scratch.path() + "/link", fifo = scratch.path() + "/fifo";
  std::filesystem::create_symlink(good, link);
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(told(link, Symlinks::follow), "");
  EXPECT_NE(told(link, Symlinks::refuse).find("symbolic link"), std::string::npos);
  EXPECT_NE(told(fifo, Symlinks::follow).find("a FIFO"), std::string::npos);
  EXPECT_NE(told(scratch.path(), Symlinks::follow).find("a folder"), std::string::npos);
  EXPECT_NE(told("/dev/zero", Symlinks::follow).find("a device"), std::string::npos);
  EXPECT_NE(told(scratch.path() + "/none", Symlinks::follow).find("No such file"),
            std::string::npos);
}

TEST(Safetensors, FileThatShrinksWhileOpenIsAnError) {
  const TemporaryFolder scratch;
  const std::string path = scratch.write("x", with_size(kGoldenJson, kGoldenData));
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, 125);
  try {
    read_all(file, "b");
    FAIL() << "read past the end";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    EXPECT_NE(std::string(error.what()).find("ends at byte 125"), std::string::npos);
  }
}

// Four times the entries take about four times as long, not sixteen: in time of the processor,
// which other programs do not use up.
TEST(Safetensors, TheTimeOfAHeaderGrowsWithItsEntries) {
  const auto seconds = [](int entries) {
    std::string json = "{";
    for (int i = 0; i < entries; ++i)
      json += fmt::format("{}\"tensor.{}\":{}", i == 0 ? "" : ",", i,
                          entry("[1]", fmt::format("[{},{}]", 4 * i, 4 * i + 4)));
    json += "}";
    const auto now = [] {
      timespec time = {};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
      return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    };
    const double begin = now();
    const SafetensorsHeader header =
        parse_safetensors_header(json, 4 * static_cast<std::uint64_t>(entries), "x");
    EXPECT_EQ(header.tensors.size(), static_cast<std::size_t>(entries));
    return now() - begin;
  };
  const double quarter = seconds(25'000);
  EXPECT_LT(seconds(100'000), 10 * quarter);
}

TEST(Safetensors, UnfinishedWriterLeavesNothingAndAnOldFileStays) {
  const TemporaryFolder scratch;
  RealFileSystem files;
  const std::string path = scratch.write("x", "old");
  {
    SafetensorsWriter writer(files, path, {{"a", Dtype::f32, {2}}});
    writer.write(bytes_of("1234"));
    EXPECT_THROW(writer.commit(), InternalError);
    EXPECT_THROW(writer.write(bytes_of("12345")), InternalError);
  }
  EXPECT_EQ(read_text(path), "old");
  EXPECT_EQ(num_files(scratch.path()), 1);
}

}  // namespace
}  // namespace sluice::test
