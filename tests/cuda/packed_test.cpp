// Packed documents on a GPU: long ones through cuDNN, the others through flash attention, against
// plain attention on the CPU; and that training needs no plan that was not made at the start.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <random>

#include "cuda/on_gpu.h"
#include "model/packed_case.h"
#include "runtime/trained.h"
#include "sluice/comm/threads/threads.h"
#include "support/plans.h"

namespace sluice {
namespace {

using CudaPacked = test::OnGpu;

void expect_plain(const test::PackedCase& c) {
  const test::PackedOutcome outcome = test::run_packed(c, at::Device(at::kCUDA, 0));
  fmt::print("{:32s} {:2d} long, error {:.2e} ({})\n", c.name, outcome.num_long, outcome.error,
             outcome.where);
  EXPECT_LE(outcome.error, 0.1) << c.name << ": " << outcome.where;
}

TEST_F(CudaPacked, LongAndShortDocumentsAreWhatPlainAttentionIs) {
  for (const std::int64_t unit : {40, 300})
    for (test::PackedCase c : test::packed_cases(unit))
      for (const std::int64_t head_dim : {c.head_dim, std::int64_t{128}}) {
        c.head_dim = head_dim;
        expect_plain(c);
      }
  for (int seed = 0; seed < 20; ++seed)
    expect_plain(test::random_packed_case(seed));
}

TEST_F(CudaPacked, DocumentsOfThousandsOfTokens) {
  test::PackedCase c;
  c.name = "thousands";
  c.bounds = {0, 6000, 12000};
  c.starts = {{0, 2500, 2600, 7000}, {0, 5999, 6000, 9100}};
  c.long_document = kLongDocument;
  c.heads = 2;
  c.kv_heads = 1;
  c.head_dim = 64;
  expect_plain(c);
}

TEST_F(CudaPacked, WhatFollowsADocumentIsNotSeen) {
  const at::Device device(at::kCUDA, 0);
  const SliceBounds bounds = {0, 512};
  const PackedDocuments packed =
      packed_documents(packed_calls({.starts = {{0, 300}}}, bounds, 0, {250, 320}), device);
  ASSERT_EQ(packed.calls.long_documents.size(), 1U);
  const auto run = [&](double after) {
    at::manual_seed(3);
    const at::Tensor rows = at::randn({512, 3 * 128}).to(device, at::kBFloat16);
    rows.slice(0, 300).fill_(after);
    const auto heads = [](const at::Tensor& x) {
      return x.unflatten(1, {2, 64}).unsqueeze(0).transpose(1, 2);
    };
    const auto parts = rows.split(128, 1);
    const AttentionInput input{
        .q = heads(parts[0]), .keys = {heads(parts[1])}, .values = {heads(parts[2])}};
    const AttentionOutput output = packed_attention(input, packed, bounds);
    const at::Tensor d_out = at::ones({512, 128}, rows.options());
    std::vector<at::Tensor> dk(1), dv(1);
    const auto own =
        packed_attention_backward(heads(d_out), input, output, packed, bounds, dk, dv).own;
    return at::cat({output.out, own.dq, own.dk, own.dv}, 1).slice(2, 0, 300).to(at::kFloat).cpu();
  };
  const at::Tensor usual = run(1);
  EXPECT_TRUE(usual.isfinite().all().item<bool>());
  // The gradients of queries are added up in no fixed order.
  EXPECT_LE(test::distance(run(1000), usual), 2e-3);
  EXPECT_LE(test::distance(run(-30), usual), 2e-3);
}

TEST_F(CudaPacked, TrainingMakesItsPlansAtTheStart) {
  std::mt19937 random(4);
  std::vector<std::int64_t> starts = {0};
  while (starts.back() < 60000)  // never a whole sequence
    starts.push_back(starts.back() + 1 + static_cast<std::int64_t>(random() % 700));
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(starts.back()));
  for (std::int32_t& token : tokens)
    token = static_cast<std::int32_t>(random() % 64);
  const Dataset data(memory_source(std::move(tokens), std::move(starts)),
                     {.sequence_length = 1024, .packing = Packing::documents, .vocab_size = 64});
  for (const auto& [slices, level] :
       {std::pair(1, RecomputeLevel::none), std::pair(1, RecomputeLevel::all_but_attention),
        std::pair(3, RecomputeLevel::none), std::pair(3, RecomputeLevel::full)}) {
    ModelShape shape = test::shape_of(ModelFamily::llama, false);
    shape.dim = 256;
    shape.heads = 4;
    shape.kv_heads = 2;
    RunPlan plan = test::plan_for(
        shape, test::lowered_schedule({slices > 1 ? "seq1f1b" : "1f1b", 1, slices}, 2), 1024, 4);
    plan.config.cluster.device = DeviceKind::cuda;
    plan.config.recompute.level = level;
    plan.config.training.dtype = NumberType::bfloat16;
    plan.config.training.steps = 10;
    const Machine machine{.device = at::Device(at::kCUDA, 0), .long_document = 128};
    run_threads(1, {}, [&](Communicator& world) {
      std::optional<Trainer> trainer;
      const auto made = test::plans_used([&] { trainer.emplace(plan, data, world, machine); });
      EXPECT_EQ(static_cast<int>(made.size()), trainer->plans().count);
      EXPECT_EQ(trainer->plans().shortest, 128);
      EXPECT_GE(trainer->plans().longest, slices == 1 ? 690 : 341);
      fmt::print("{}\n", trainer->plans().line());
      const auto used = test::plans_used([&] {
        for (int n = 1; n <= 4; ++n)
          EXPECT_TRUE(std::isfinite(trainer->step(n).loss));
      });
      EXPECT_GT(used.size(), 4U);
      for (const std::string& name : used)
        EXPECT_EQ(made.count(name), 1U) << name;
    });
  }
}

}  // namespace
}  // namespace sluice
