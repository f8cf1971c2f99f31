// Tensors cut into boxes: which cuts tile, and that any box of a saved tensor is read back from
// whatever boxes it was saved in.
#include "sluice/runtime/files/pieces.h"

#include <gtest/gtest.h>

#include <random>

#include "sluice/runtime/files/checkpoint.h"
#include "sluice/runtime/files/checkpoint_folder.h"
#include "support/run_sluice.h"

namespace sluice {
namespace {

using Bytes = std::vector<std::byte>;

ShardRecord shard(int rank, std::vector<TensorPiece> pieces) {
  return {shard_file_name(rank), 0, "", std::move(pieces)};
}

std::string problem_of(const TensorSpec& tensor, const std::vector<Box>& boxes) {
  std::vector<ShardRecord> shards;
  for (const Box& box : boxes)
    shards.push_back(shard(static_cast<int>(shards.size()), {{tensor, box}}));
  return tiling_problem(shards);
}

TEST(Tiling, HolesAndOverlapsAreNamedByRowsAndColumns) {
  const TensorSpec w{"w", Dtype::f32, {4, 6}};
  EXPECT_EQ(problem_of(w, {{{0, 4}, {0, 6}}}), "");
  EXPECT_EQ(problem_of(w, {{{0, 4}, {3, 6}}, {{0, 4}, {0, 3}}}), "");
  EXPECT_EQ(problem_of(w, {{{2, 4}, {0, 6}}, {{0, 2}, {0, 3}}, {{0, 2}, {3, 6}}}), "");
  // A pinwheel: tiled, though no cut goes all the way through.
  EXPECT_EQ(problem_of({"p", Dtype::f32, {3, 3}}, {{{0, 1}, {0, 2}},
                                                   {{0, 2}, {2, 3}},
                                                   {{2, 3}, {1, 3}},
                                                   {{1, 3}, {0, 1}},
                                                   {{1, 2}, {1, 2}}}),
            "");
  EXPECT_EQ(problem_of(w, {{{0, 3}, {0, 6}}}), R"(rows [3, 4) of tensor "w" are in no shard)");
  EXPECT_EQ(problem_of(w, {{{1, 4}, {0, 6}}}), R"(rows [0, 1) of tensor "w" are in no shard)");
  EXPECT_EQ(problem_of(w, {{{0, 4}, {0, 2}}, {{0, 4}, {3, 6}}}),
            R"(rows [0, 4), columns [2, 3) of tensor "w" are in no shard)");
  EXPECT_EQ(
      problem_of(w, {{{0, 4}, {0, 4}}, {{2, 4}, {3, 6}}, {{0, 2}, {4, 6}}}),
      R"(rows [2, 4), columns [3, 4) of tensor "w" are in two shards, rank-00000.safetensors )"
      "and rank-00001.safetensors");
  EXPECT_EQ(problem_of(w, {{{0, 4}, {0, 6}}, {{0, 4}, {0, 6}}}),
            R"(rows [0, 4) of tensor "w" are in two shards, rank-00000.safetensors and )"
            "rank-00001.safetensors");
  // What holds nothing is nowhere in the way.
  EXPECT_EQ(problem_of(w, {{{0, 4}, {0, 6}}, {{2, 2}, {0, 6}}}), "");
  EXPECT_EQ(problem_of({"none", Dtype::f32, {0, 6}}, {{{0, 0}, {0, 6}}}), "");
  EXPECT_EQ(problem_of({"scalar", Dtype::f32, {}}, {{{0, 1}, {0, 1}}}), "");
}

TEST(Tiling, OneNameIsOneTensorAndOncePerShard) {
  const TensorSpec w{"w", Dtype::f32, {4, 6}};
  const TensorSpec other{"w", Dtype::bf16, {4, 6}};
  EXPECT_EQ(
      tiling_problem({shard(0, {{w, {{0, 2}, {0, 6}}}}), shard(1, {{other, {{2, 4}, {0, 6}}}})}),
      R"(tensor "w" is F32 [4,6] in rank-00000.safetensors and BF16 [4,6] in )"
      "rank-00001.safetensors");
  EXPECT_EQ(tiling_problem({shard(0, {{w, {{0, 2}, {0, 6}}}, {w, {{2, 4}, {0, 6}}}})}),
            R"(tensor "w" appears twice in rank-00000.safetensors)");
}

TEST(Tiling, PiecesOfPartsOfBytesHaveWholeRows) {
  const TensorSpec w{"w", Dtype::f4, {4, 6}};
  EXPECT_EQ(piece_problem({w, {{1, 3}, {0, 6}}}), "");
  EXPECT_NE(piece_problem({w, {{0, 4}, {0, 2}}}).find("end inside a byte"), std::string::npos);
  EXPECT_NE(piece_problem({w, {{0, 5}, {0, 6}}}).find("has 4 rows"), std::string::npos);
  EXPECT_NE(piece_problem({{"v", Dtype::f32, {4}}, {{0, 4}, {0, 0}}}), "");
  EXPECT_NE(piece_problem({w, {{3, 2}, {0, 6}}}).find("has 4 rows"), std::string::npos);
}

// A tensor as a mesh of ranks holds it: tensor parallelism cuts rows or columns into equal or
// unequal parts, and data rank i of d owns 64ths [64 i / d, 64 (i + 1) / d) of each part's rows.
struct Cut {
  TensorSpec tensor;
  std::vector<Box> boxes;  // by rank; some may be empty
};

Cut random_cut(std::mt19937_64& random, int number, std::int64_t tensor_ranks,
               std::int64_t data_ranks) {
  const auto upto = [&](std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(0, most)(random);
  };
  Cut cut;
  const Dtype dtypes[] = {Dtype::f32, Dtype::bf16, Dtype::u8, Dtype::f64};
  cut.tensor = {"tensor." + std::to_string(number), dtypes[upto(3)], {}};
  for (std::int64_t dims = upto(3); dims > 0; --dims)
    cut.tensor.shape.push_back(1 + upto(cut.tensor.shape.size() < 2 ? 90 : 3));
  const Box whole = whole_box(cut.tensor);
  const bool by_columns = upto(1) == 0;
  for (std::int64_t d = 0; d < data_ranks; ++d)
    for (std::int64_t t = 0; t < tensor_ranks; ++t) {
      Box box = whole;
      Range& side = by_columns ? box.columns : box.rows;
      side = {side.end * t / tensor_ranks, side.end * (t + 1) / tensor_ranks};
      const std::int64_t rows = box.rows.size(), first = box.rows.begin;
      box.rows = {first + rows * (64 * d / data_ranks) / 64,
                  first + rows * (64 * (d + 1) / data_ranks) / 64};
      cut.boxes.push_back(box);
    }
  return cut;
}

// A box of a whole tensor's bytes, element by element.
Bytes box_bytes(const TensorSpec& tensor, const Bytes& whole, const Box& box) {
  const auto count = [](std::int64_t value) { return static_cast<std::size_t>(value); };
  const std::size_t element =
      whole.size() / count(num_rows(tensor)) / count(num_columns(tensor));  // of further dimensions
  Bytes out;
  for (std::int64_t row = box.rows.begin; row < box.rows.end; ++row)
    for (std::int64_t column = box.columns.begin; column < box.columns.end; ++column)
      for (std::size_t byte = 0; byte < element; ++byte)
        out.push_back(whole[count(row * num_columns(tensor) + column) * element + byte]);
  return out;
}

Box random_box(std::mt19937_64& random, const TensorSpec& tensor) {
  const auto range = [&](std::int64_t size, bool has_dimension) {
    if (!has_dimension) return Range{0, 1};
    std::uniform_int_distribution<std::int64_t> any(0, size);
    const std::int64_t a = any(random), b = any(random);
    return Range{std::min(a, b), std::max(a, b)};
  };
  return {range(num_rows(tensor), !tensor.shape.empty()),
          range(num_columns(tensor), tensor.shape.size() > 1)};
}

TEST(Pieces, AnyBoxOfATensorSavedUnderAnyMeshIsReadBack) {
  std::mt19937_64 random(11);
  for (int mesh = 0; mesh < 16; ++mesh) {
    const std::int64_t tensor_ranks = mesh % 4 + 1, data_ranks = mesh / 4 + 1;
    const int num_ranks = static_cast<int>(tensor_ranks * data_ranks);
    SCOPED_TRACE(testing::Message() << "tensor " << tensor_ranks << ", data " << data_ranks);
    const test::TemporaryFolder scratch;
    RealFileSystem files;
    std::vector<Cut> cuts;
    std::vector<Bytes> wholes;
    for (int i = 0; i < 8; ++i) {
      cuts.push_back(random_cut(random, i, tensor_ranks, data_ranks));
      Bytes& whole = wholes.emplace_back(
          tensor_bytes(cuts.back().tensor.dtype, cuts.back().tensor.shape).value());
      for (std::byte& byte : whole)
        byte = static_cast<std::byte>(random());
    }
    std::unique_ptr<CheckpointFolder> first;
    for (int rank = 0; rank < num_ranks; ++rank) {
      auto folder = std::make_unique<CheckpointFolder>(
          files,
          CheckpointFolderOptions{.folder = scratch.path(), .rank = rank, .num_ranks = num_ranks});
      std::vector<TensorPiece> pieces;
      std::vector<Bytes> bytes;
      for (std::size_t i = 0; i < cuts.size(); ++i) {
        const Box& box = cuts[i].boxes[static_cast<std::size_t>(rank)];
        if (box.empty()) continue;
        pieces.push_back({cuts[i].tensor, box});
        bytes.push_back(box_bytes(cuts[i].tensor, wholes[i], box));
      }
      folder->write_shard(1, pieces,
                          [&](std::size_t i) { return std::span(std::as_const(bytes[i])); });
      if (rank == 0) first = std::move(folder);
    }
    CheckpointInfo info;
    info.step = 1;
    first->commit(info);
    const Checkpoint checkpoint(scratch.path() + "/step-00000001");
    checkpoint.verify();
    for (std::size_t i = 0; i < cuts.size(); ++i)
      for (int attempt = 0; attempt < 20; ++attempt) {
        const Box box =
            attempt == 0 ? whole_box(cuts[i].tensor) : random_box(random, cuts[i].tensor);
        const Bytes expected = box_bytes(cuts[i].tensor, wholes[i], box);
        Bytes read(expected.size());
        checkpoint.read_box(cuts[i].tensor, box, read);
        EXPECT_EQ(read, expected) << piece_text({cuts[i].tensor, box});
      }
  }
}

}  // namespace
}  // namespace sluice
