// A checkpoint saved under one mesh and schedule is loaded under any other, bit for bit: weights,
// masters and moments.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "runtime/trained.h"
#include "sluice/base/names.h"
#include "sluice/comm/threads/threads.h"
#include "sluice/model/autograd_layer.h"
#include "sluice/run/optimizer_states.h"
#include "sluice/runtime/checkpointing.h"
#include "sluice/runtime/files/digest.h"
#include "support/golden.h"
#include "support/run_sluice.h"

namespace sluice {
namespace {

struct Layout {
  test::Case schedule;
  MeshShape mesh;
  Sharding sharding = Sharding::states;
  std::string text() const {
    return fmt::format("{} on {}, replicate {}, shard {} of {}, tensor {}", schedule.schedule,
                       schedule.devices, mesh.replicate, mesh.shard, name_of(sharding),
                       mesh.tensor);
  }
};

// At most 8 ranks.
Layout random_layout(std::mt19937& random, OptimizerKind optimizer = OptimizerKind::adamw) {
  static const std::vector<test::Case> schedules = {
      {"1f1b", 1}, {"1f1b", 2},   {"1f1b", 4},     {"interleaved-1f1b", 2},
      {"zb-v", 2}, {"v-half", 2}, {"dualpipe", 2}, {"seq1f1b", 2, 2}};
  Layout layout;
  do {
    layout.schedule = schedules[random() % schedules.size()];
    layout.mesh.replicate = 1 + static_cast<int>(random() % 2);
    layout.mesh.shard = 1 + static_cast<int>(random() % 3);
    layout.mesh.tensor = 1 + static_cast<int>(random() % 2);
    layout.mesh.pipeline = layout.schedule.devices;
  } while (layout.mesh.size() > 8);
  // Muon needs whole matrices.
  if (random() % 2 == 0 && optimizer != OptimizerKind::muon) layout.sharding = Sharding::parameters;
  return layout;
}

struct Model {
  ModelFamily family;
  bool tied;
  NumberType dtype;
  // All of it: gradients, states and no masters.
  bool narrow = false;
  OptimizerKind optimizer = OptimizerKind::adamw;
};

class Reshard {
 public:
  const Config& config() const { return config_; }
  explicit Reshard(const Model& model) : model_(model) {
    config_.model.shape = model.family;
    config_.model.layers = 4;
    config_.model.dim = 20;  // so that rows do not divide into 64 blocks
    config_.model.heads = 2;
    config_.model.kv_heads = model.family == ModelFamily::llama ? 1 : 2;
    config_.model.ffn_dim = 28;
    config_.model.vocab_size = 66;
    config_.model.tied_embeddings = model.tied;
    config_.training.dtype = model.dtype;
    config_.optimizer.name = model.optimizer;
    if (model.narrow) {
      config_.training.gradient_dtype = config_.optimizer.state_dtype = NumberType::bfloat16;
      config_.optimizer.master_weights = false;
      config_.optimizer.rounding = Rounding::stochastic;
    }
    config_.training.sequence_length = 8;
    config_.training.global_batch_size = 48;
    config_.training.steps = 4;
  }

  // Those of a user's own.
  void use_layers(LayerFactory make_layer) { make_layer_ = std::move(make_layer); }

  // Loads `from`, if there is any, trains up to `steps` and saves that in `to`.
  void run(const Layout& layout, const std::string& from, int steps, const std::string& to) const {
    Config config = config_;
    config.checkpoint.folder = to;
    config.checkpoint.load = from.empty() ? "none" : from;
    config.parallelism.pipeline_parallel_degree = layout.mesh.pipeline;
    config.parallelism.tensor_parallel_degree = layout.mesh.tensor;
    config.parallelism.data_parallel_replicate_degree = layout.mesh.replicate;
    config.parallelism.data_parallel_shard_degree = layout.mesh.shard;
    config.parallelism.sharding = layout.sharding;
    config.parallelism.num_microbatches = 4;
    const RunPlan plan =
        make_plan(resolve_config(config), test::lowered_schedule(layout.schedule, 4));
    const Dataset data(test::tokens(), {.sequence_length = 8, .vocab_size = 66, .seed = 3});
    run_threads(layout.mesh.size(), {}, [&](Communicator& world) {
      at::set_num_threads(1);
      Trainer trainer(plan, data, world, {.make_layer = make_layer_});
      const Note silent = [](const std::string&) {};
      const std::int64_t loaded = load_checkpoint(plan.config, 0, world, trainer, silent).step;
      EXPECT_EQ(loaded, from.empty() ? 0 : 2);
      for (int step = static_cast<int>(loaded) + 1; step <= steps; ++step)
        trainer.step(step);
      Saver saver(plan, world, trainer, {}, silent);
      saver.save(steps, silent);
    });
  }

 private:
  Model model_;
  Config config_;
  LayerFactory make_layer_ = make_block;
};

void expect_same_tensors(const std::vector<TensorDigest>& a, const std::vector<TensorDigest>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].tensor, b[i].tensor);
    EXPECT_EQ(a[i].sha256, b[i].sha256) << a[i].tensor.name;
  }
}

CheckpointDigest held_in(const std::string& folder) {
  return digest(Checkpoint(checkpoint_at(folder)));
}

TEST(Reshard, AnyMeshAndScheduleLoadsWhatAnyOtherSaved) {
  std::mt19937 random(5);
  const Model models[] = {
      {ModelFamily::gpt2, true, NumberType::float32},
      {ModelFamily::llama, false, NumberType::float32},
      {ModelFamily::llama, true, NumberType::bfloat16},
      {ModelFamily::gpt2, false, NumberType::bfloat16},
      {ModelFamily::llama, true, NumberType::bfloat16, true},
      {ModelFamily::gpt2, true, NumberType::float32, false, OptimizerKind::nadam},
      {ModelFamily::llama, false, NumberType::bfloat16, false, OptimizerKind::muon}};
  for (const Model& model : models) {
    const Reshard runs(model);
    for (int round = 0; round < 3; ++round) {
      const test::TemporaryFolder scratch;
      const Layout first = random_layout(random, model.optimizer);
      SCOPED_TRACE(first.text());
      runs.run(first, "", 2, scratch.path() + "/first");
      const CheckpointDigest saved = held_in(scratch.path() + "/first");
      std::size_t states = 0;
      for (const TensorDigest& weight : saved.weights)
        states += states_of(runs.config(), {weight.tensor.name, weight.tensor.shape}).size();
      EXPECT_EQ(saved.states.size(), states);
      EXPECT_GT(states, saved.weights.size());
      for (int other = 0; other < 2; ++other) {
        const Layout second = random_layout(random, model.optimizer);
        SCOPED_TRACE(second.text());
        const std::string to = fmt::format("{}/second-{}", scratch.path(), other);
        runs.run(second, scratch.path() + "/first", 2, to);
        const CheckpointDigest again = held_in(to);
        EXPECT_EQ(again.weights_sha256, saved.weights_sha256);
        expect_same_tensors(again.weights, saved.weights);
        expect_same_tensors(again.states, saved.states);
      }
    }
  }
}

// The whole way: to another mesh and back, and on.
TEST(Reshard, ADetourOverAnotherMeshChangesNoBitOfTheTraining) {
  for (const bool narrow : {false, true}) {
    const Reshard runs({ModelFamily::gpt2, true, NumberType::bfloat16, narrow});
    const test::TemporaryFolder scratch;
    const auto path = [&](const char* name) { return scratch.path() + "/" + name; };
    const Layout one{{"1f1b", 2}, {.replicate = 1, .shard = 1, .pipeline = 2, .tensor = 1}};
    const Layout wide{{"zb-v", 2}, {.replicate = 1, .shard = 2, .pipeline = 2, .tensor = 2}};
    runs.run(one, "", 2, path("a"));
    runs.run(wide, path("a"), 2, path("b"));
    const Layout sharded{{"1f1b", 2},
                         {.replicate = 2, .shard = 3, .pipeline = 2, .tensor = 1},
                         Sharding::parameters};
    runs.run(sharded, path("b"), 2, path("c"));
    runs.run(one, path("c"), 4, path("detour"));
    runs.run(one, "", 4, path("straight"));
    EXPECT_EQ(held_in(path("detour")).weights_sha256, held_in(path("straight")).weights_sha256);
    expect_same_tensors(held_in(path("detour")).states, held_in(path("straight")).states);
    EXPECT_NE(held_in(path("detour")).weights_sha256, held_in(path("a")).weights_sha256);
  }
}

// A checkpoint of sharded parameters holds each row once, in the file of the rank that has it.
TEST(Reshard, ARunOfShardedParametersGoesOnFromItsOwnCheckpoint) {
  const Reshard runs({ModelFamily::gpt2, true, NumberType::bfloat16});
  const test::TemporaryFolder scratch;
  const auto path = [&](const char* name) { return scratch.path() + "/" + name; };
  const Layout sharded{
      {"zb-v", 2}, {.replicate = 2, .shard = 2, .pipeline = 2, .tensor = 1}, Sharding::parameters};
  runs.run(sharded, "", 2, path("a"));
  runs.run(sharded, path("a"), 4, path("resumed"));
  runs.run(sharded, "", 4, path("straight"));
  EXPECT_EQ(held_in(path("resumed")).weights_sha256, held_in(path("straight")).weights_sha256);
  expect_same_tensors(held_in(path("resumed")).states, held_in(path("straight")).states);
  const Checkpoint saved(checkpoint_at(path("a")));
  for (const ShardRecord& shard : saved.manifest().shards)
    for (const TensorPiece& piece : shard.pieces)
      EXPECT_LT(piece.box.rows.size(), num_rows(piece.tensor)) << piece.tensor.name;
}

// States are converted: what bf16 holds comes back as it was, masters begin as the weights are.
TEST(Reshard, ARunGoesOnFromStatesOfAnotherType) {
  const Reshard wide({ModelFamily::gpt2, true, NumberType::bfloat16});
  const Reshard narrow({ModelFamily::gpt2, true, NumberType::bfloat16, true});
  const test::TemporaryFolder scratch;
  const auto path = [&](const char* name) { return scratch.path() + "/" + name; };
  const Layout layout{{"1f1b", 2}, {.replicate = 1, .shard = 2, .pipeline = 2, .tensor = 1}};
  narrow.run(layout, "", 2, path("narrow"));
  wide.run(layout, path("narrow"), 2, path("widened"));
  const CheckpointDigest widened = held_in(path("widened"));
  EXPECT_EQ(widened.weights_sha256, held_in(path("narrow")).weights_sha256);
  EXPECT_EQ(widened.states.size(), widened.weights.size() * 3);
  narrow.run(layout, path("widened"), 2, path("again"));
  expect_same_tensors(held_in(path("again")).weights, held_in(path("narrow")).weights);
  expect_same_tensors(held_in(path("again")).states, held_in(path("narrow")).states);
  // Masters are the weights.
  const Checkpoint checkpoint(checkpoint_at(path("widened")));
  const auto read = [&](const std::string& name, at::ScalarType dtype) {
    const TensorSpec& spec = *checkpoint.find(name);
    at::Tensor tensor = at::empty(spec.shape, dtype);
    checkpoint.read_box(spec, {{0, spec.shape[0]}, {0, spec.shape[1]}}, tensor_bytes(tensor));
    return tensor;
  };
  EXPECT_TRUE(at::equal(read("embedding.weight/master", at::kFloat),
                        read("embedding.weight", at::kBFloat16).to(at::kFloat)));
}

// Bits of fp32 weights become masters, and masters become weights, whatever the mesh.
TEST(Reshard, ARunGoesOnFromWeightsOfAnotherType) {
  const Reshard wide({ModelFamily::llama, true, NumberType::float32});
  const Reshard narrow({ModelFamily::llama, true, NumberType::bfloat16});
  const test::TemporaryFolder scratch;
  const auto path = [&](const char* name) { return scratch.path() + "/" + name; };
  const Layout one{{"1f1b", 2}, {.replicate = 1, .shard = 1, .pipeline = 2, .tensor = 1}};
  const Layout other{{"zb-v", 2}, {.replicate = 1, .shard = 2, .pipeline = 2, .tensor = 2}};
  wide.run(one, "", 2, path("wide"));
  narrow.run(other, path("wide"), 2, path("narrowed"));
  const CheckpointDigest before = held_in(path("wide")), narrowed = held_in(path("narrowed"));
  ASSERT_EQ(narrowed.states.size(), narrowed.weights.size() * 3);
  std::map<std::string, std::string> masters;
  for (const TensorDigest& state : narrowed.states)
    masters[state.tensor.name] = state.sha256;
  for (const TensorDigest& weight : before.weights)
    EXPECT_EQ(masters[weight.tensor.name + "/master"], weight.sha256) << weight.tensor.name;
  for (const TensorDigest& weight : narrowed.weights)
    EXPECT_EQ(weight.tensor.dtype, Dtype::bf16);
  // And back, moments too.
  wide.run(one, path("narrowed"), 2, path("back"));
  expect_same_tensors(held_in(path("back")).weights, before.weights);
  expect_same_tensors(held_in(path("back")).states, before.states);
  // A narrow weight is its master, rounded.
  const Checkpoint checkpoint(checkpoint_at(path("narrowed")));
  const auto read = [&](const std::string& name, at::ScalarType dtype) {
    const TensorSpec& spec = *checkpoint.find(name);
    at::Tensor tensor = at::empty(spec.shape, dtype);
    checkpoint.read_box(spec, {{0, spec.shape[0]}, {0, spec.shape[1]}}, tensor_bytes(tensor));
    return tensor;
  };
  EXPECT_TRUE(at::equal(read("embedding.weight", at::kBFloat16),
                        read("embedding.weight/master", at::kFloat).to(at::kBFloat16)));
}

// A layer with a vector of each name, which tokens are multiplied by.
LayerFactory own_layers(const std::vector<std::string>& names) {
  return [names](const LayerOptions& layer) -> std::unique_ptr<Layer> {
    OwnModule own;
    for (const std::string& name : names)
      own.parameters.emplace_back(name, at::empty({layer.shape.dim}).requires_grad_());
    own.forward = [parameters = own.parameters](const at::Tensor& x) {
      at::Tensor y = x;
      for (const auto& [name, value] : parameters)
        y = y * value;
      return y;
    };
    return std::make_unique<AutogradLayer>(layer, own);
  };
}

TEST(Reshard, OwnLayersAreLoadedAgainAndNoneOfTheirWeightsIsDropped) {
  const Layout two{{"1f1b", 2}, {.replicate = 1, .shard = 1, .pipeline = 2, .tensor = 1}};
  const Layout one{{"1f1b", 1}, {}};
  const test::TemporaryFolder scratch;
  const auto path = [&](const char* name) { return scratch.path() + "/" + name; };
  Reshard runs({ModelFamily::gpt2, true, NumberType::float32});
  runs.use_layers(own_layers({"gain", "scale"}));
  runs.run(two, "", 2, path("own"));
  runs.run(one, path("own"), 2, path("again"));
  expect_same_tensors(held_in(path("again")).weights, held_in(path("own")).weights);
  // The configuration says nothing of layers: what they have does.
  runs.use_layers(own_layers({"gain"}));
  for (const Layout& layout : {one, two}) {
    try {
      runs.run(layout, path("own"), 2, path("less"));
      ADD_FAILURE() << "a weight was dropped";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      EXPECT_NE(std::string(error.what()).find("'layers.0.scale'"), std::string::npos)
          << error.what();
    }
  }
  EXPECT_FALSE(std::filesystem::exists(path("less")));
}

TEST(Reshard, ADamagedShardOfAnotherMeshIsNamed) {
  const Reshard runs({ModelFamily::llama, false, NumberType::float32});
  const test::TemporaryFolder scratch;
  const std::string saved = scratch.path() + "/saved";
  const Layout wide{{"1f1b", 2}, {.replicate = 1, .shard = 2, .pipeline = 2, .tensor = 2}};
  const Layout one{{"1f1b", 1}, {}};
  runs.run(wide, "", 2, saved);
  const std::string shard = saved + "/step-00000002/rank-00005.safetensors";
  const std::string good = test::read_text(shard);
  const auto refusal = [&]() -> std::string {
    try {
      runs.run(one, saved, 2, scratch.path() + "/other");
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      return error.what();
    }
    return "accepted";
  };
  std::string flipped = good;
  flipped[flipped.size() - 9] = static_cast<char>(flipped[flipped.size() - 9] ^ 4);
  const std::string foreign = test::read_text(saved + "/step-00000002/rank-00004.safetensors");
  for (const std::string& damage : {flipped, good.substr(0, good.size() / 2), foreign}) {
    std::ofstream(shard, std::ios::binary) << damage;
    EXPECT_NE(refusal().find("rank-00005.safetensors"), std::string::npos) << refusal();
  }
  std::filesystem::remove(shard);
  EXPECT_NE(refusal().find("rank-00005.safetensors"), std::string::npos) << refusal();
  std::ofstream(shard, std::ios::binary) << good;
  EXPECT_EQ(refusal(), "accepted");
}

}  // namespace
}  // namespace sluice
