#include "sluice/runtime/files/checkpoint_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <barrier>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "runtime/faulty_file_system.h"
#include "runtime/saved_run.h"
#include "sluice/runtime/files/checkpoint.h"
#include "sluice/runtime/files/digest.h"
#include "sluice/runtime/files/sha256.h"
#include "support/golden.h"
#include "support/run_sluice.h"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;

class CheckpointFolderTest : public testing::Test {
 protected:
  // Steps 10 and 20 are saved.
  void SetUp() override {
    save(files_, folder_, 10, 0);
    save(files_, folder_, 20, 10);
  }

  std::string path(std::int64_t step, const std::string& file) const {
    return folder_ + "/" + step_folder_name(step) + "/" + file;
  }

  // Step 20 is refused with a message that has all of `parts`, and step 10 is found instead.
  void expect_refused(const std::vector<std::string>& parts) {
    try {
      Checkpoint(folder_ + "/step-00000020").verify();
      FAIL() << "step 20 is accepted";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      for (const std::string& part : parts)
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
            << "expected: " << part << "\nhave: " << error.what();
    }
    const auto found = find_latest(folder_);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->step, 10);
    ASSERT_FALSE(found->passed_over.empty());
    EXPECT_NE(found->passed_over[0].damage.find(parts[0]), std::string::npos)
        << found->passed_over[0].damage;
    expect_contents(*found);
  }

  void rewrite(const std::string& file, const std::string& text) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << text;
  }

  TemporaryFolder scratch_;
  std::string folder_ = scratch_.path() + "/checkpoints";
  FaultyFileSystem files_{folder_};  // without a fault: real, but for the time that a sync takes
  const std::string shard_ = "rank-00001.safetensors";
};

TEST_F(CheckpointFolderTest, LayoutIsTheDocumentedOne) {
  EXPECT_EQ(read_text(folder_ + "/LATEST"), "step-00000020\n");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder_ + "/step-00000020"))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"manifest.json", "rank-00000.safetensors",
                                             "rank-00001.safetensors"}));
  const std::string manifest = read_text(path(20, "manifest.json"));
  for (const char* part :
       {R"("step": 20,)",
        R"("mesh": {"data": 1, "pipeline": 2, "tensor": 1, "sequence": 1, )"
        R"("order": "pipeline,data,tensor"},)",
        R"("schedule": "v-half",)", R"("state": {"data_position":80},)",
        R"({"name": "embedding", "dtype": "F32", "shape": [5, 3], "rows": [3, 5], )"
        R"("columns": [0, 3], "file": "rank-00001.safetensors"})"})
    EXPECT_NE(manifest.find(part), std::string::npos) << part << "\n" << manifest;
}

// Of a manifest that was changed, with the seal that belongs to it.
std::string sealed_again(std::string text) {
  const std::string label = " \"sha256\": \"";
  const std::size_t at = text.rfind(label);
  text.resize(at);
  return text + label + sha256_hex(text) + "\"\n}\n";
}

TEST_F(CheckpointFolderTest, AFormatWithoutTheOrderOfItsMeshStillLoads) {
  std::string manifest = read_text(path(20, "manifest.json"));
  const auto change = [&](const std::string& from, const std::string& to) {
    ASSERT_NE(manifest.find(from), std::string::npos) << manifest;
    manifest.replace(manifest.find(from), from.size(), to);
  };
  change(R"(, "order": "pipeline,data,tensor"})", "}");
  change(R"("format": 4)", R"("format": 3)");
  rewrite(path(20, "manifest.json"), sealed_again(manifest));
  const auto found = find_latest(folder_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 20);
  EXPECT_TRUE(found->passed_over.empty());
  const Checkpoint checkpoint(found->folder);
  CheckpointInfo info = info_of(20);
  info.mesh.order = "data,pipeline,tensor";
  EXPECT_EQ(checkpoint.manifest().info, info);
  const TensorSpec* tensor = checkpoint.find("embedding");
  ASSERT_NE(tensor, nullptr);
  std::vector<std::byte> bytes(5 * 12);
  checkpoint.read_box(*tensor, rows_of(*tensor, 0, 5), bytes);
  EXPECT_EQ(bytes, content(*tensor, 20, 0, 5));
}

TEST_F(CheckpointFolderTest, AMeshInAnotherOrderIsRefused) {
  std::string manifest = read_text(path(20, "manifest.json"));
  const std::string order = "pipeline,data,tensor";
  manifest.replace(manifest.find(order), order.size(), "tensor,data,pipeline");
  rewrite(path(20, "manifest.json"), sealed_again(manifest));
  // It is whole, so nothing older is looked for.
  for (const bool latest : {false, true}) {
    try {
      if (latest) find_latest(folder_);
      Checkpoint(folder_ + "/step-00000020");
      FAIL() << "it is accepted";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_EQ(std::string(error.what()),
                path(20, "manifest.json") +
                    ": mesh.order is \"tensor,data,pipeline\", and this version reads "
                    "\"pipeline,data,tensor\" and \"data,pipeline,tensor\": use the version that "
                    "wrote it");
    }
  }
}

TEST_F(CheckpointFolderTest, LatestIsFoundWithItsContents) {
  const auto found = find_latest(folder_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 20);
  EXPECT_TRUE(found->passed_over.empty());
  expect_contents(*found);
}

TEST_F(CheckpointFolderTest, AnyRowsAreReadFromWhicheverShardsHoldThem) {
  const Checkpoint checkpoint(folder_ + "/step-00000020");
  const TensorSpec* tensor = checkpoint.find("embedding");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(checkpoint.find("none"), nullptr);
  for (std::int64_t begin = 0; begin <= 5; ++begin)
    for (std::int64_t end = begin; end <= 5; ++end) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(end - begin) * 12);
      checkpoint.read_box(*tensor, rows_of(*tensor, begin, end), bytes);
      EXPECT_EQ(bytes, content(*tensor, 20, begin, end)) << begin << " " << end;
    }
}

TEST_F(CheckpointFolderTest, MissingShardIsNamed) {
  fs::remove(path(20, shard_));
  expect_refused({path(20, shard_), "No such file"});
}

TEST_F(CheckpointFolderTest, TruncatedShardIsNamedWithBothSizes) {
  const auto size = fs::file_size(path(20, shard_));
  fs::resize_file(path(20, shard_), size - 1);
  expect_refused({path(20, shard_), fmt::format("has {} bytes", size - 1),
                  fmt::format("says {}: truncated", size)});
}

TEST_F(CheckpointFolderTest, ExtendedShardIsNamedWithBothSizes) {
  const auto size = fs::file_size(path(20, shard_));
  fs::resize_file(path(20, shard_), size + 1);
  expect_refused({path(20, shard_), fmt::format("says {}: extended", size)});
}

TEST_F(CheckpointFolderTest, EverySingleFlippedBitIsFound) {
  for (const std::string& file : {path(20, shard_), path(20, "manifest.json")}) {
    const std::string good = read_text(file);
    for (std::size_t at = 0; at < good.size(); ++at) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 1 << at % 8);
      rewrite(file, bad);
      EXPECT_THROW(Checkpoint(folder_ + "/step-00000020").verify(), UserError)
          << "bit " << at % 8 << " of byte " << at;
    }
    rewrite(file, good);
  }
  Checkpoint(folder_ + "/step-00000020").verify();
  std::string bad = read_text(path(20, shard_));
  bad.back() = static_cast<char>(bad.back() ^ 1);
  rewrite(path(20, shard_), bad);
  expect_refused({path(20, shard_), "and the manifest says", "corrupt"});
}

TEST_F(CheckpointFolderTest, SwappedShardsAreForeign) {
  const std::string first = path(20, "rank-00000.safetensors");
  const std::string a = read_text(first), b = read_text(path(20, shard_));
  rewrite(first, b);
  rewrite(path(20, shard_), a);
  expect_refused(
      {first, fmt::format("has {} bytes, and the manifest says {}", b.size(), a.size())});
}

TEST(SwappedShards, OfEqualSizeAreForeignToo) {
  const TemporaryFolder scratch;
  RealFileSystem files;
  CheckpointFolder first(files, {scratch.path(), 0, 2, 0, 0});
  CheckpointFolder second(files, {scratch.path(), 1, 2, 0, 0});
  const TensorSpec tensor{"w", Dtype::f32, {4, 2}};
  const std::vector<std::byte> rows = content(tensor, 7, 0, 2);
  const auto bytes = [&](std::size_t) { return std::span<const std::byte>(rows); };
  first.write_shard(7, {{tensor, rows_of(tensor, 0, 2)}}, bytes);
  second.write_shard(7, {{tensor, rows_of(tensor, 2, 4)}}, bytes);
  first.commit(info_of(7));
  const std::string folder = scratch.path() + "/step-00000007/";
  Checkpoint(folder).verify();
  fs::rename(folder + "rank-00000.safetensors", folder + "swap");
  fs::rename(folder + "rank-00001.safetensors", folder + "rank-00000.safetensors");
  fs::rename(folder + "swap", folder + "rank-00001.safetensors");
  const auto refusal = [&](const auto& read) -> std::string {
    try {
      const Checkpoint checkpoint(folder);
      read(checkpoint);
      return "accepted";
    } catch (const UserError& error) {
      return error.what();
    }
  };
  const std::string reason = "is the shard of step 7, rank 1, in place of that of step 7, rank 0";
  EXPECT_NE(refusal([](const Checkpoint& read) { read.verify(); }).find(reason), std::string::npos);
  // A rank that reads without verifying sees it as well.
  EXPECT_NE(refusal([&](const Checkpoint& read) {
              std::vector<std::byte> into(16);
              read.read_box(tensor, rows_of(tensor, 0, 2), into);
            }).find(reason),
            std::string::npos);
}

TEST_F(CheckpointFolderTest, ShardOfAnotherStepIsForeign) {
  fs::copy_file(path(10, shard_), path(20, shard_), fs::copy_options::overwrite_existing);
  expect_refused(
      {path(20, shard_), "is the shard of step 10, rank 1, in place of that of step 20, rank 1"});
}

TEST_F(CheckpointFolderTest, ManifestOfAnotherStepIsForeign) {
  fs::copy_file(path(10, "manifest.json"), path(20, "manifest.json"),
                fs::copy_options::overwrite_existing);
  expect_refused(
      {path(20, "manifest.json"), "is the manifest of step 10, and its folder is that of step 20"});
}

TEST_F(CheckpointFolderTest, ShardThatTheManifestDoesNotKnowIsForeign) {
  fs::copy_file(path(20, shard_), path(20, "rank-00002.safetensors"));
  expect_refused({path(20, "rank-00002.safetensors"), "not in the manifest"});
}

TEST_F(CheckpointFolderTest, LinksPipesAndFoldersAreNoShards) {
  const std::string elsewhere = scratch_.path() + "/elsewhere";
  fs::rename(path(20, shard_), elsewhere);
  fs::create_symlink(elsewhere, path(20, shard_));
  expect_refused({path(20, shard_), "symbolic link"});
  fs::remove(path(20, shard_));
  ASSERT_EQ(mkfifo(path(20, shard_).c_str(), 0600), 0);
  expect_refused({path(20, shard_), "a FIFO"});
  fs::remove(path(20, shard_));
  fs::create_directory(path(20, shard_));
  expect_refused({path(20, shard_), "a folder"});
}

TEST_F(CheckpointFolderTest, BadLatestFallsBackToTheNewestWholeOne) {
  fs::remove(path(20, "manifest.json"));
  for (const char* text : {"step-00000099\n", "../../etc\n", "", "step-20", "step-00000020/../x"}) {
    rewrite(folder_ + "/LATEST", text);
    const auto found = find_latest(folder_);
    ASSERT_TRUE(found) << text;
    EXPECT_EQ(found->step, 10) << text;
    EXPECT_EQ(found->passed_over.size(), 1U) << text;
  }
  fs::remove(folder_ + "/LATEST");
  EXPECT_EQ(find_latest(folder_)->step, 10);
}

TEST_F(CheckpointFolderTest, NoneThatCanBeTrustedIsAnErrorThatSaysWhy) {
  fs::resize_file(path(10, shard_), 100);
  fs::resize_file(path(20, shard_), 100);
  try {
    find_latest(folder_);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    for (const std::string& part : {path(10, shard_), path(20, shard_)})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
  EXPECT_FALSE(find_latest(scratch_.path() + "/none"));
}

TEST_F(CheckpointFolderTest, OldOnesAreRemovedAndHalfOnesAreNotCounted) {
  save(files_, folder_, 30, 20);
  fs::remove(path(20, shard_));  // half a checkpoint now
  scratch_.write("checkpoints/step-00000010/notes.txt", "keep me");
  save(files_, folder_, 40, 30, 2);
  // 40 and 30 are kept; 20 goes; of 10 only what is ours.
  EXPECT_EQ(steps_in(folder_), (std::vector<std::int64_t>{10, 30, 40}));
  EXPECT_EQ(read_text(path(10, "notes.txt")), "keep me");
  EXPECT_FALSE(fs::exists(path(10, shard_)));
  fs::remove(path(40, shard_));
  fs::remove(path(10, "notes.txt"));
  save(files_, folder_, 50, 40, 2);
  EXPECT_EQ(steps_in(folder_), (std::vector<std::int64_t>{30, 40, 50}));
  save(files_, folder_, 60, 50, 1);
  EXPECT_EQ(steps_in(folder_), (std::vector<std::int64_t>{60}));
  expect_contents(*find_latest(folder_));
}

TEST_F(CheckpointFolderTest, RolledBackRunReplacesNewerOnesOnlyWhenItReachesThem) {
  rewrite(folder_ + "/LATEST", "step-00000010\n");
  EXPECT_EQ(find_latest(folder_)->step, 10);
  save(files_, folder_, 15, 10, 1);
  EXPECT_EQ(steps_in(folder_), (std::vector<std::int64_t>{15, 20}));
  EXPECT_EQ(find_latest(folder_)->step, 15);
  save(files_, folder_, 20, 15, 1);
  EXPECT_EQ(steps_in(folder_), (std::vector<std::int64_t>{20}));
  expect_contents(*find_latest(folder_));
}

TEST_F(CheckpointFolderTest, FreshRunDoesNotOverwriteAnOlderOne) {
  try {
    save(files_, folder_, 10, 0);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_NE(std::string(error.what()).find("holds step 20, and this run starts at step 0"),
              std::string::npos);
  }
  EXPECT_THROW(save(files_, folder_, 20, 20), UserError);
  expect_contents(*find_latest(folder_));
}

TEST_F(CheckpointFolderTest, SecondWriterIsTurnedAway) {
  {
    const CheckpointFolder first(files_, {folder_, 0, 2, 20, 0});
    try {
      const CheckpointFolder second(files_, {folder_, 0, 2, 20, 0});
      FAIL();
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::temporary);
      EXPECT_NE(std::string(error.what()).find("in use by another run"), std::string::npos);
    }
  }
  const CheckpointFolder third(files_, {folder_, 0, 2, 20, 0});
}

TEST_F(CheckpointFolderTest, ShardsLeftByAKilledSaveAreNotMixedIn) {
  {
    CheckpointFolder four(files_, {folder_, 3, 4, 20, 0});
    four.write_shard(30, {}, [](std::size_t) { return std::span<const std::byte>(); });
    EXPECT_TRUE(fs::exists(path(30, "rank-00003.safetensors")));
  }
  EXPECT_EQ(find_latest(folder_)->step, 20);
  save(files_, folder_, 30, 20);
  EXPECT_FALSE(fs::exists(path(30, "rank-00003.safetensors")));
  expect_contents(*find_latest(folder_));
}

TEST_F(CheckpointFolderTest, CommitWithoutEveryShardOrRowIsRefused) {
  CheckpointFolder first(files_, {folder_, 0, 2, 20, 0});
  write_shard(first, 0, 30);
  EXPECT_THROW(first.commit(info_of(30)), UserError);
  CheckpointFolder second(files_, {folder_, 1, 2, 20, 0});
  second.write_shard(30, {}, [](std::size_t) { return std::span<const std::byte>(); });
  try {
    first.commit(info_of(30));
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_NE(
        std::string(error.what()).find(R"(rows [3, 5) of tensor "embedding" are in no shard)"),
        std::string::npos)
        << error.what();
  }
  EXPECT_EQ(find_latest(folder_)->step, 20);
}

TEST_F(CheckpointFolderTest, SealedManifestOfWrongFormIsRefused) {
  // An attacker can seal what he likes; the form is still checked.
  const std::string good = read_text(path(20, "manifest.json"));
  const auto resealed = [&](const std::string& from, const std::string& to) {
    std::string body = good.substr(0, good.rfind(" \"sha256\": "));
    const std::size_t at = body.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    body.replace(at, from.size(), to);
    const std::string hash = sha256_hex(body);
    rewrite(path(20, "manifest.json"), body + " \"sha256\": \"" + hash + "\"\n}\n");
  };
  const std::pair<const char*, const char*> cases[] = {
      {R"("columns": [0, 3])", R"("columns": [0, 2])"},
      {R"("columns": [0, 3])", R"("columns": [0, 4])"},
      {R"("columns": [0, 3], )", ""},
      {R"("step": 20)", R"("step": -20)"},
      {R"("step": 20)", R"("step": 20.5)"},
      {R"("step": 20)", R"("step": 20, "step": 20)"},
      {R"("name": "rank-00001.safetensors")", R"("name": "../rank-00001.safetensors")"},
      {R"("rows": [3, 5])", R"("rows": [2, 5])"},
      {R"("rows": [3, 5])", R"("rows": [4, 5])"},
      {R"("rows": [3, 5])", R"("rows": [3, 6])"},
      {R"("rows": [3, 5])", R"("rows": [5, 3])"},
      {R"("dtype": "BF16")", R"("dtype": "F16")"},
      {R"("shape": [2, 2])", R"("shape": [2, 4611686018427387904])"},
      {R"("shape": [2, 2])", R"("shape": [2, 3])"},
      {R"("config": ")", R"("config": 1, "x": ")"},
      {R"("state": {)", R"("state": [], "x": {)"},
      {R"("bytes": )", R"("bytes": 1)"},
  };
  for (const auto& [from, to] : cases) {
    SCOPED_TRACE(to);
    resealed(from, to);
    expect_refused({path(20, "")});
  }
}

TEST_F(CheckpointFolderTest, DigestIsOfWholeTensorsHoweverTheyAreCut) {
  // Both ranks hold rows of "embedding"; one rank alone saves the same and a state beside it.
  const std::string other = scratch_.path() + "/other";
  const TensorSpec state{"head/first_moment", Dtype::f32, {2}};
  {
    CheckpointFolder folder(files_, {other, 0, 1, 0, 0});
    std::vector<TensorPiece> pieces = {whole_tensor(state)};
    const Checkpoint cut(folder_ + "/step-00000020");
    for (const TensorSpec& tensor : cut.tensors())
      pieces.push_back(whole_tensor(tensor));
    std::vector<std::byte> bytes;
    folder.write_shard(20, pieces, [&](std::size_t i) {
      bytes = content(pieces[i].tensor, 20, 0, num_rows(pieces[i].tensor));
      return std::span<const std::byte>(bytes);
    });
    folder.commit(info_of(20));
  }
  const auto text_of = [](const TensorSpec& tensor) {
    const std::vector<std::byte> bytes = content(tensor, 20, 0, num_rows(tensor));
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  for (const std::string& folder : {folder_, other}) {
    const CheckpointDigest held = digest(Checkpoint(checkpoint_at(folder)));
    std::string all;
    std::vector<std::string> names;
    for (const TensorDigest& weight : held.weights) {
      EXPECT_EQ(weight.sha256, sha256_hex(text_of(weight.tensor))) << weight.tensor.name;
      names.push_back(weight.tensor.name);
      all += text_of(weight.tensor);
    }
    EXPECT_EQ(names, (std::vector<std::string>{"embedding", "head", "scale"}));
    EXPECT_EQ(held.weights_sha256, sha256_hex(all));
    EXPECT_EQ(held.states.size(), folder == other ? 1U : 0U);
  }
}

TEST_F(CheckpointFolderTest, APathNamesACheckpointOrTheNewestBelowIt) {
  const std::string newest = folder_ + "/step-00000020", older = folder_ + "/step-00000010";
  EXPECT_EQ(checkpoint_at(folder_), newest);
  EXPECT_EQ(checkpoint_at(folder_ + "/"), newest);
  EXPECT_EQ(checkpoint_at(newest), newest);
  EXPECT_EQ(checkpoint_at(older + "//"), older);
  const auto expect_none = [](const std::string& at, const std::string& part) {
    try {
      checkpoint_at(at);
      FAIL() << at << " is accepted";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  expect_none(scratch_.path(), "holds no checkpoint");
  expect_none(scratch_.path() + "/nowhere", "holds no checkpoint");
  // Damage is said, and not passed over for an older one as a resumed run does.
  fs::remove(path(20, "rank-00001.safetensors"));
  expect_none(folder_, "rank-00001.safetensors");
  expect_none(newest, "rank-00001.safetensors");
  EXPECT_EQ(checkpoint_at(older), older);
  fs::remove(path(20, "manifest.json"));
  expect_none(newest, "manifest.json");
}

TEST(RanksInThreads, SaveTogetherAndReadTogether) {
  constexpr int kRanks = 4;
  const TemporaryFolder scratch;
  const TensorSpec tensor{"w", Dtype::f32, {kRanks, 1000}};
  std::barrier together(kRanks);
  const auto rank_body = [&](int rank) {
    RealFileSystem files;
    const CheckpointFolderOptions options{scratch.path() + "/run", rank, kRanks, 0, 1};
    std::optional<CheckpointFolder> folder;
    if (rank == 0) folder.emplace(files, options);
    together.arrive_and_wait();
    if (rank != 0) folder.emplace(files, options);
    for (const std::int64_t step : {1, 2, 3}) {
      const std::vector<std::byte> row = content(tensor, step, rank, rank + 1);
      folder->write_shard(step, {{tensor, rows_of(tensor, rank, rank + 1)}},
                          [&](std::size_t) { return std::span<const std::byte>(row); });
      together.arrive_and_wait();
      if (rank == 0) folder->commit(info_of(step));
      together.arrive_and_wait();
    }
  };
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < kRanks; ++rank)
      ranks.emplace_back(rank_body, rank);
  }
  const auto found = find_latest(scratch.path() + "/run");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 3);
  EXPECT_EQ(steps_in(scratch.path() + "/run"), std::vector<std::int64_t>{3});
  const Checkpoint checkpoint(found->folder);
  std::vector<std::vector<std::byte>> read(kRanks, std::vector<std::byte>(4 * 4000));
  {
    std::vector<std::jthread> ranks;
    for (auto& into : read)
      ranks.emplace_back([&] { checkpoint.read_box(tensor, whole_box(tensor), into); });
  }
  for (const auto& bytes : read)
    EXPECT_EQ(bytes, content(tensor, 3, 0, kRanks));
}

TEST(StepFolder, OnlyTheExactFormIsOne) {
  EXPECT_EQ(step_folder_name(10), "step-00000010");
  EXPECT_EQ(parse_step_folder("step-00000010"), 10);
  EXPECT_EQ(parse_step_folder("step-123456789"), 123456789);
  for (const char* name : {"step-10", "step-000000010", "step-0000001x", "step--0000001",
                           "step-00000010 ", "Step-00000010", "step-99999999999999999999"})
    EXPECT_FALSE(parse_step_folder(name)) << name;
}

}  // namespace
}  // namespace sluice::test
