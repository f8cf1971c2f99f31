// What train_mpi_test starts: `schedules_program threads N`, or `schedules_program mpi N` under
// mpirun, trains a small model for 5 steps through every schedule there is for that many ranks,
// plain and in slices. A line for each: its name, slices, last loss and a hash of all weights. Two
// more lines are of ranks that share sequences, with states and with parameters sharded.
#include <ATen/Parallel.h>

#include <cstdio>
#include <cstdlib>
#include <set>

#include "sluice/base/names.h"
#include "sluice/base/text.h"
#include "sluice/cli/report.h"
#include "sluice/runtime/files/sha256.h"
#include "sluice/runtime/ranks.h"
#include "sluice/runtime/trainer.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/validate.h"
#include "support/plans.h"

namespace sluice {
namespace {

ModelShape small_shape() {
  ModelShape shape;
  shape.family = ModelFamily::gpt2;
  shape.layers = 8;
  shape.dim = 16;
  shape.heads = shape.kv_heads = 2;
  shape.ffn_dim = 32;
  shape.vocab_size = 64;
  shape.positions = 16;
  shape.tied_embeddings = true;
  return shape;
}

std::shared_ptr<const TokenSource> tokens(std::vector<std::int64_t> starts = {0, 4000}) {
  std::vector<std::int32_t> out;
  std::uint32_t state = 12345;
  for (int n = 0; n < 4000; ++n) {
    state = state * 1664525u + 1013904223u;
    out.push_back(static_cast<std::int32_t>((state >> 24) % 16) + (n % 4) * 16);
  }
  return memory_source(out, std::move(starts));
}

// On rank 0. Whole weights, whoever holds them; of sharded ones the rows that each rank keeps.
std::string hash_of_weights(Trainer& trainer, Communicator& world) {
  std::string rows;
  for (const Weight& weight : trainer.weights()) {
    const bool sharded = weight.sharded_rows > 0;
    const at::Tensor value = (sharded ? weight.own_value() : weight.value).contiguous();
    const std::string_view bytes(static_cast<const char*>(value.const_data_ptr()), value.nbytes());
    rows += fmt::format("{}{} {}\n", weight.name,
                        sharded ? fmt::format(" from row {}", weight.own.begin) : "",
                        sha256_hex(bytes));
  }
  std::set<std::string> all;  // two pipes hold everything twice
  for (const auto& bytes : world.gather(0, std::as_bytes(std::span(rows)), "hashes")) {
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    for (const std::string_view row : split(text, '\n'))
      all.emplace(row);
  }
  std::string joined;
  for (const std::string& row : all)
    joined += row + "\n";
  return sha256_hex(joined);
}

void train(const Generator& generator, int slices, Communicator& world) {
  GeneratorOptions choice;
  choice.devices = world.size();
  choice.microbatches = 8;
  choice.slices = slices;
  if (generator.knobs.memory_cap) choice.memory_cap = 2 * world.size();
  const Dataset data(tokens(), {.sequence_length = 16, .vocab_size = 64, .seed = 3});
  RunPlan plan =
      test::plan_for(small_shape(), validate(generate_schedule(generator, choice)).lowered, 16, 16);
  plan.config.training.steps = 5;
  plan.config.training.max_norm = 0.5;
  plan.config.optimizer.lr = 0.01;
  plan.config.debug.seed = 11;
  Trainer trainer(plan, data, world);
  double loss = 0;
  for (int step = 1; step <= plan.config.training.steps; ++step)
    loss = trainer.step(step).loss;
  const std::string hash = hash_of_weights(trainer, world);
  if (world.rank() == 0) fmt::print("{} {} {} {}\n", generator.name, slices, loss, hash);
}

// Documents of 1 to 16 tokens, shared by all ranks in one microbatch, by half of them or by none in
// others; some ranks have nothing in one.
void train_shared(Communicator& world, Sharding sharding) {
  const int ranks = world.size(), half = std::max(1, ranks / 2);
  constexpr std::int64_t kBatch = 16;
  std::vector<std::int64_t> starts = {0};
  while (starts.back() < 4000)
    starts.push_back(std::min<std::int64_t>(4000, starts.back() + 1 + starts.back() * 7 % 16));
  const Dataset data(
      tokens(starts),
      {.sequence_length = 16, .packing = Packing::sequences, .vocab_size = 64, .seed = 3});
  ModelShape shape = small_shape();
  shape.heads = shape.kv_heads = 4;
  GeneratorOptions choice;
  choice.devices = 1;
  choice.microbatches = 3;
  RunPlan plan =
      test::plan_for(shape, validate(generate_schedule("zb-h1", choice)).lowered, 16, kBatch);
  plan.mesh.shard = ranks;
  plan.config.parallelism.sharding = sharding;
  plan.config.data.packing = Packing::sequences;
  plan.config.training.steps = 5;
  plan.config.optimizer.lr = 0.01;
  auto plans = std::make_shared<BatchPlans>();
  for (int step = 1; step <= plan.config.training.steps; ++step) {
    PlannedBatch& batch = plans->steps[step];
    batch.plan.microbatches = {{{ranks, 0}}, {{half, ranks - half}}, {}};
    for (int rank = 0; rank < ranks; ++rank)
      batch.plan.microbatches[2].push_back({1, rank});
    std::vector<SequenceGroup*> groups;
    for (auto& of_microbatch : batch.plan.microbatches)
      for (SequenceGroup& group : of_microbatch)
        groups.push_back(&group);
    for (std::int64_t n = 0; n < kBatch; ++n)
      groups[static_cast<std::size_t>(n) % groups.size()]->sequences.push_back(n);
    batch.lengths_sha256 =
        sha256_hex(lengths_text(data.lengths((step - 1) * kBatch, step * kBatch)));
  }
  plan.batch_plans = plans;
  Trainer trainer(plan, data, world);
  double loss = 0;
  for (int step = 1; step <= plan.config.training.steps; ++step)
    loss = trainer.step(step).loss;
  const std::string hash = hash_of_weights(trainer, world);
  if (world.rank() == 0) fmt::print("shared-sequences {} {}\n", loss, hash);
}

void train_all(Communicator& world) {
  at::set_num_threads(1);
  for (const Sharding sharding : {Sharding::states, Sharding::parameters})
    train_shared(world, sharding);
  for (const Generator* generator : all_generators()) {
    if (generator->knobs.block) continue;
    for (const int slices : {1, 4}) {
      if (slices > 1 && !generator->knobs.slices) continue;
      try {
        train(*generator, slices, world);
      } catch (const UserError& error) {  // all ranks agree: none has begun
        if (world.rank() == 0)
          fmt::print("{} {} refused: {}\n", generator->name, slices, error.what());
      }
    }
  }
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto backend = sluice::named<sluice::Backend>(argv[1]);
  if (!backend) return 2;
  const sluice::CommConfig comm{.backend = *backend};
  const int num_ranks = std::atoi(argv[2]);
  const auto report = sluice::cli::report_error;
  return static_cast<int>(sluice::report_once(
      [&] { return sluice::run_ranks(comm, num_ranks, report, sluice::train_all); }, report));
}
