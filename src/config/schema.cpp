#include "sluice/config/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "sluice/base/error.h"
#include "sluice/base/names.h"
#include "sluice/base/text.h"
#include "sluice/schedule/op.h"

namespace sluice {
namespace {

template <typename Field>
constexpr bool kIsRule = false;
template <typename Rule>
constexpr bool kIsRule<RuleOrList<Rule>> = true;

template <typename Field>
constexpr ValueKind kind_of() {
  if constexpr (std::is_same_v<Field, bool>) return ValueKind::boolean;
  if constexpr (std::is_same_v<Field, double>) return ValueKind::real;
  if constexpr (std::is_same_v<Field, std::string> || Named<Field>) return ValueKind::text;
  if constexpr (std::is_same_v<Field, std::vector<double>>) return ValueKind::numbers;
  if constexpr (kIsRule<Field>) return ValueKind::rule;
  return ValueKind::whole;
}

template <typename Field>
std::vector<std::string_view> choices_of() {
  if constexpr (Named<Field>) {
    constexpr auto kNames = names_of(Field{});
    return {kNames.begin(), kNames.end()};
  }
  if constexpr (kIsRule<Field>) {
    std::vector<std::string_view> rules = choices_of<decltype(Field::rule)>();
    rules.pop_back();  // list
    return rules;
  }
  return {};
}

template <auto Section, auto Field>
ConfigValue get_field(const Config& config) {
  const auto& field = config.*Section.*Field;
  using Type = std::decay_t<decltype(field)>;
  if constexpr (std::is_same_v<Type, int>)
    return static_cast<std::int64_t>(field);
  else if constexpr (Named<Type>)
    return std::string(name_of(field));
  else if constexpr (kIsRule<Type>)
    return RuleText{
        field.rule == decltype(field.rule)::list ? "" : std::string(name_of(field.rule)),
        field.list};
  else
    return field;
}

template <auto Section, auto Field>
void set_field(Config& config, const ConfigValue& value) {
  auto& field = config.*Section.*Field;
  using Type = std::decay_t<decltype(field)>;
  if constexpr (std::is_same_v<Type, int>)
    field = static_cast<int>(std::get<std::int64_t>(value));
  else if constexpr (Named<Type>)
    field = *named<Type>(std::get<std::string>(value));
  else if constexpr (kIsRule<Type>) {
    using Rule = decltype(field.rule);
    const auto& given = std::get<RuleText>(value);
    field.rule = !given.rule.empty()  ? *named<Rule>(given.rule)
                 : given.list.empty() ? Rule{}
                                      : Rule::list;
    field.list = given.list;
  } else
    field = std::get<Type>(value);
}

// The names of a row and the member that holds its value.
#define SLUICE_KEY(section_, name_)                                                          \
  .section = #section_, .name = #name_, .kind = kind_of<decltype(Config::section_.name_)>(), \
  .get = get_field<&Config::section_, &decltype(Config::section_)::name_>,                   \
  .set = set_field<&Config::section_, &decltype(Config::section_)::name_>,                   \
  .choices = choices_of<decltype(Config::section_.name_)>()

constexpr double kMaxSteps = 1'000'000'000;

std::vector<ConfigKey> make_schema() {
  return {
      {SLUICE_KEY(model, shape),
       .help = "gpt2: layer norm, GELU, learned positions, biases; llama: RMS norm, SwiGLU, "
               "rotary positions; bert: an encoder with gpt2's parts, trained on masked "
               "tokens"},
      {SLUICE_KEY(model, layers), .range = {1, 10'000}, .aliases = {"model.n_layers"},
       .help = "transformer layers"},
      {SLUICE_KEY(model, dim), .range = {1, 1'000'000}, .help = "width of the residual stream"},
      {SLUICE_KEY(model, heads), .range = {1, 100'000}, .aliases = {"model.n_heads"},
       .help = "attention heads; must divide dim"},
      {SLUICE_KEY(model, kv_heads), .range = {0, 100'000}, .aliases = {"model.n_kv_heads"},
       .help = "key/value heads (llama); must divide heads; 0: as many as heads"},
      {SLUICE_KEY(model, ffn_dim), .range = {0, 10'000'000}, .aliases = {"model.hidden_dim"},
       .help = "width inside the MLP; 0: 4 dim, for llama 8/3 dim rounded up to a multiple of "
               "256"},
      {SLUICE_KEY(model, vocab_size), .range = {1, 100'000'000},
       .help = "tokens in the vocabulary; the byte tokenizer has 257 (256 bytes and the end "
               "of a document); bert's last token is the mask"},
      {SLUICE_KEY(model, positions), .range = {0, 1 << 24}, .aliases = {"model.max_seq_len"},
       .help = "longest sequence the model can take; 0: training.sequence_length"},
      {SLUICE_KEY(model, tied_embeddings), .aliases = {"model.enable_weight_tying"},
       .help = "the head shares the embedding's weight"},
      {SLUICE_KEY(model, rope_theta), .range = {.least = 0, .most = 1e12, .least_excluded = true},
       .help = "base of the rotary frequencies (llama)"},
      {SLUICE_KEY(model, rope_scaling),
       .help =
           "llama3: rotary frequencies are scaled as in Llama 3.1 to 3.3, by the next four keys"},
      {SLUICE_KEY(model, rope_factor), .range = {.least = 0, .most = 1e6, .least_excluded = true},
       .help = "llama3: low frequencies are divided by this; 8 in Llama 3.1, 32 in 3.2"},
      {SLUICE_KEY(model, rope_low_freq_factor),
       .range = {.least = 0, .most = 1e6, .least_excluded = true},
       .help = "llama3: a frequency is low where its wavelength is above rope_original_positions / "
               "this"},
      {SLUICE_KEY(model, rope_high_freq_factor),
       .range = {.least = 0, .most = 1e6, .least_excluded = true},
       .help = "llama3: a frequency stays as it is where its wavelength is below "
               "rope_original_positions / this"},
      {SLUICE_KEY(model, rope_original_positions), .range = {1, 1 << 24},
       .help = "llama3: positions that the model was trained on before the scaling"},
      {SLUICE_KEY(model, norm_epsilon), .range = {.least = 0, .most = 1, .most_excluded = true},
       .help = "added to the variance in norms; 0: 1e-12 for bert, else 1e-5"},
      {SLUICE_KEY(model, dropout), .range = {0, 0}, .help = "not supported: 0 is the only value",
       .reason = "dropout is not supported; remove the key"},

      {SLUICE_KEY(data, path), .aliases = {"training.dataset_path"},
       .help = "file or folder to train on; megatron: the path with or without .bin or .idx"},
      {SLUICE_KEY(data, format),
       .help = "auto: by the names of the files; text: UTF-8 files, each one document; jsonl: the "
               "\"text\" of each line; bytes: any files, unchecked; megatron: a .bin/.idx pair"},
      {SLUICE_KEY(data, tokenizer),
       .help = "a tokenizer.json (byte-level BPE) for text; empty: tokens are bytes"},
      {SLUICE_KEY(data, packing),
       .help = "stream: documents follow one another within a sequence; documents: no attention "
               "and no loss across the end of a document, and positions restart; sequences: each "
               "document is a sequence of its own length"},
      {SLUICE_KEY(data, overlong),
       .help = "with packing = sequences, a document of more than training.sequence_length tokens "
               "is an error, is dropped, or is truncated to that length"},
      {SLUICE_KEY(data, validation_fraction),
       .range = {.least = 0, .most = 1, .most_excluded = true},
       .help = "share of the tokens, with packing = sequences of the documents, at the end of the "
               "data, held out for validation"},

      {SLUICE_KEY(training, steps), .range = {0, kMaxSteps}, .help = "optimizer updates"},
      {SLUICE_KEY(training, sequence_length), .range = {1, 1 << 24},
       .aliases = {"training.seq_len"},
       .help = "tokens per sequence; with data.packing = sequences, the most that one may have"},
      {SLUICE_KEY(training, global_batch_size), .range = {1, 1 << 24},
       .help = "sequences per step, over all microbatches"},
      {SLUICE_KEY(training, dtype), .synonyms = {"fp32=float32", "bf16=bfloat16"},
       .aliases = {"training.mixed_precision_param"}, .help = "type of weights and activations"},
      {SLUICE_KEY(training, gradient_dtype), .synonyms = {"fp32=float32", "bf16=bfloat16"},
       .help = "type of weight gradients, summed over microbatches and data ranks; bfloat16 "
               "only with bfloat16 weights"},
      {SLUICE_KEY(training, max_norm), .range = {0, 1e9},
       .help = "gradients are clipped to this global norm; 0: no clipping"},

      {SLUICE_KEY(optimizer, name),
       .help = "adamw; sgd: without momentum; nadam: AdamW with Nesterov's momentum; muon: "
               "orthogonal updates of the layers' matrices, AdamW of all else "
               "(docs/training.md#optimizers)"},
      {SLUICE_KEY(optimizer, lr), .range = {0, 1000}, .help = "peak learning rate"},
      {SLUICE_KEY(optimizer, beta1), .range = {.least = 0, .most = 1, .most_excluded = true},
       .help = "decay of the first moment (adamw, nadam; with muon of what AdamW updates)"},
      {SLUICE_KEY(optimizer, beta2), .range = {.least = 0, .most = 1, .most_excluded = true},
       .help = "decay of the second moment, likewise"},
      {SLUICE_KEY(optimizer, eps), .range = {.least = 0, .most = 1, .least_excluded = true},
       .help = "added to the denominator, likewise"},
      {SLUICE_KEY(optimizer, weight_decay), .range = {0, 1000},
       .help = "decoupled weight decay, on matrices only (not on norms and biases)"},
      {SLUICE_KEY(optimizer, momentum_decay), .range = {0, 1},
       .help = "nadam: how fast its momentum rises to beta1"},
      {SLUICE_KEY(optimizer, momentum), .range = {.least = 0, .most = 1, .most_excluded = true},
       .help = "muon: decay of the momentum, which is Nesterov's"},
      {SLUICE_KEY(optimizer, muon_steps), .range = {1, 100},
       .help = "muon: steps of the Newton-Schulz iteration"},
      {SLUICE_KEY(optimizer, muon_dtype), .synonyms = {"fp32=float32", "bf16=bfloat16"},
       .help = "muon: type of the iteration's matmuls; auto: bfloat16 on a GPU, else float32"},
      {SLUICE_KEY(optimizer, muon_scale),
       .help = "muon: adamw: updates are as large as AdamW's (0.2 times the square root of the "
               "longer side), so its learning rate will do; spectral: the square root of rows by "
               "columns, at least 1"},
      {SLUICE_KEY(optimizer, master_weights),
       .help = "keep float32 copies of bfloat16 weights, and update those"},
      {SLUICE_KEY(optimizer, state_dtype), .synonyms = {"fp32=float32", "bf16=bfloat16"},
       .help = "type of moments and momentum"},
      {SLUICE_KEY(optimizer, rounding),
       .help = "how updates round bfloat16 moments, and bfloat16 weights without masters; "
               "stochastic: up or down at random, right on average, drawn from debug.seed"},

      {SLUICE_KEY(lr_scheduler, warmup_steps), .range = {0, kMaxSteps},
       .help = "steps in which the learning rate rises linearly; then it falls as a cosine; at "
               "most training.steps"},
      {SLUICE_KEY(lr_scheduler, min_lr_ratio), .range = {0, 1},
       .aliases = {"lr_scheduler.min_lr_factor"},
       .help = "final learning rate, as a share of the peak"},

      {SLUICE_KEY(parallelism, pipeline_parallel_degree), .range = {1, 1 << 20},
       .help = "devices of the pipeline"},
      {SLUICE_KEY(parallelism, pipeline_parallel_schedule),
       .help = "a name from sluice schedule --list, or PyTorch's name"},
      {SLUICE_KEY(parallelism, pipeline_parallel_schedule_csv),
       .help = "a CSV file with a schedule; overrides the name"},
      {SLUICE_KEY(parallelism, num_microbatches), .range = {0, 1 << 24},
       .help = "microbatches per step in each copy of the pipeline; must divide its share of "
               "the global batch, except with data.packing = sequences; 0: one sequence each; with "
               "flexsp.plan_file: as many as its first plan has"},
      {SLUICE_KEY(parallelism, stages_per_device), .range = {0, 1024},
       .help = "stages on each device; 0: the schedule's own number"},
      {SLUICE_KEY(parallelism, group_size), .range = {0, 1 << 26},
       .help = "microbatches per group (interleaved-1f1b, interleaved-zb, gis); 0: the schedule's "
               "own number"},
      {SLUICE_KEY(parallelism, layers_per_stage), .range = {0, 10'000},
       .help = "even: the same number for every stage; auto: so that the slowest device is as fast "
               "as possible, counting embedding and head (sluice partition shows it); or a list, "
               "one number per stage (0 for the first or last: embedding or head alone)"},
      {SLUICE_KEY(parallelism, costs), .aliases = {"parallelism.partition_costs"},
       .help = "a costs file from sluice profile, for what is searched (layers_per_stage = "
               "\"auto\", zb, adaptive-v) and predicted; empty: count the FLOPs of the matmuls"},
      {SLUICE_KEY(parallelism, device_memory_mib), .range = {0, 1e9},
       .help = "memory cap of each device, or a list with one per device, counted as in --dry-run: "
               "layers_per_stage = \"auto\", zb and adaptive-v keep to it; 0: no cap"},
      {SLUICE_KEY(parallelism, slices), .range = {1, kMaxSlices},
       .help = "slices of each sequence, for schedules that cut sequences"},
      {SLUICE_KEY(parallelism, slice_sizes), .range = {1, 1 << 24}, .none_is_first = true,
       .help = "even: slices of as many tokens; balanced: slices of as much work; or a list with "
               "the tokens of each slice, first to last"},
      {SLUICE_KEY(parallelism, slice_multiple), .range = {0, 1 << 24},
       .help = "balanced slices begin at multiples of so many tokens; 0: 128 on a GPU, 1 on the "
               "CPU"},
      {SLUICE_KEY(parallelism, memory_cap), .range = {0, 1e9},
       .help = "stage-activations that a device may hold (zb, adaptive-v); 0: no cap"},
      {SLUICE_KEY(parallelism, fuse_backward),
       .help = "run every W directly after its I, as one op: less memory with recomputation"},
      {SLUICE_KEY(parallelism, tensor_parallel_degree), .range = {1, 1024},
       .help = "ranks that share each layer; must divide heads, ffn_dim and vocab_size"},
      {SLUICE_KEY(parallelism, sequence_parallel_norms),
       .aliases = {"parallelism.enable_sequence_parallel"},
       .help = "tensor ranks also divide the tokens for norms and residual sums: less memory, "
               "more messages"},
      {SLUICE_KEY(parallelism, scatter_gather),
       .help = "with tensor parallelism, each rank sends only its share of a tensor to the "
               "next stage, which assembles it"},
      {SLUICE_KEY(parallelism, data_parallel_replicate_degree), .range = {1, 1 << 20},
       .help = "copies of the whole pipeline, each with its share of the batch"},
      {SLUICE_KEY(parallelism, data_parallel_shard_degree), .range = {1, 1 << 20},
       .help = "further copies, which also divide the optimizer states (ZeRO-1)"},
      {SLUICE_KEY(parallelism, sharding),
       .help = "what these copies divide: states (ZeRO-1); or parameters: also weights and "
               "gradients, gathered layer by layer (ZeRO-3): less memory, more messages"},
      {SLUICE_KEY(parallelism, gradient_bucket_mib),
       .range = {.least = 0, .most = 1e6, .least_excluded = true},
       .help = "size of the buckets in which data ranks exchange gradients; does not change "
               "the result"},
      {SLUICE_KEY(parallelism, deferred_validation),
       .help = "update at once, check the global gradient norm later, and roll back if it "
               "must be clipped"},

      {SLUICE_KEY(flexsp, enabled),
       .help = "with data.packing = sequences, plan for every batch which data ranks share which "
               "sequences, by the flexsp section of parallelism.costs, within "
               "parallelism.device_memory_mib"},
      {SLUICE_KEY(flexsp, strategy),
       .help = "flex: groups of any degrees; fixed:D: all groups of D ranks, for example fixed:8; "
               "batch-ada: groups of one degree, the best for each batch"},
      {SLUICE_KEY(flexsp, min_degree), .range = {1, 1 << 20},
       .help = "the fewest ranks that share sequences"},
      {SLUICE_KEY(flexsp, max_degree), .range = {0, 1 << 20},
       .help = "the most ranks that share sequences; 0: all data ranks, as far as the heads divide "
               "among them"},
      {SLUICE_KEY(flexsp, trials), .range = {1, 1000},
       .help = "numbers of microbatches that are tried for a batch, from the fewest that may do"},
      {SLUICE_KEY(flexsp, plan_file),
       .help = "with data.packing = sequences, a file of batch plans to replay: which ranks share "
               "which sequences, step by step; empty: sequences are planned (flexsp.enabled) or "
               "dealt longest first"},

      {SLUICE_KEY(asynchronous, order),
       .help = "of amdp: A, R, T, rounded-A or frozen; auto: the fastest (docs/asynchronous.md)"},
      {SLUICE_KEY(asynchronous, pipes), .range = {0, 1024},
       .help = "pipes of order frozen; 0: half the devices"},
      {SLUICE_KEY(asynchronous, in_flight), .range = {0, 1024},
       .help = "microbatches in flight in each pipe of order frozen; 0: two"},
      {SLUICE_KEY(asynchronous, backward), .help = "split: I and W apart; fused: B"},
      {SLUICE_KEY(asynchronous, border), .range = {0, 2},
       .help = "forwards that the outer devices of orders A and rounded-A run ahead where blocks "
               "meet, 1 or 2; 0: the order's own"},
      {SLUICE_KEY(asynchronous, update_slot), .range = {0, 1 << 20},
       .help = "where in the first block of the next window the weights are updated; 0: as late as "
               "loses no gradient"},
      {SLUICE_KEY(asynchronous, weights),
       .help = "what a backward uses that runs behind an update: the newest weights, or those of "
               "its forward, which are then kept; auto: as the schedule does"},
      {SLUICE_KEY(asynchronous, states),
       .help = "where several devices hold a stage: its owner alone keeps the optimizer's states "
               "and sends the new weights, or every one keeps and updates its own"},
      {SLUICE_KEY(asynchronous, flush),
       .help = "end every step before the next begins: the same order, synchronous"},
      {SLUICE_KEY(asynchronous, max_mismatch), .range = {-1, 1 << 20},
       .help = "updates that may come between a forward and its backward; -1: 1 for amdp, any "
               "number for others"},
      {SLUICE_KEY(asynchronous, max_delay), .range = {-1, 1 << 20},
       .help = "updates that the weights of a forward may lack; -1: as for max_mismatch"},

      {SLUICE_KEY(recompute, level), .aliases = {"activation_checkpoint.mode"},
       .help = "what the backward computes again: nothing; norms and activations; also the "
               "MLP's up projection; everything except attention; the whole layer"},

      {SLUICE_KEY(checkpoint, folder), .help = "folder for checkpoints; empty: save none"},
      {SLUICE_KEY(checkpoint, interval), .range = {0, kMaxSteps},
       .help = "steps between checkpoints; 0: only at the end"},
      {SLUICE_KEY(checkpoint, keep_latest_k), .range = {0, 1'000'000},
       .help = "checkpoints to keep; 0: all"},
      {SLUICE_KEY(checkpoint, load),
       .help = "latest: continue from the newest checkpoint in the folder, if there is one; "
               "none: start from scratch; or the path of a checkpoint"},

      {SLUICE_KEY(validation, interval), .range = {0, kMaxSteps}, .aliases = {"validation.freq"},
       .help = "steps between validations; there is also one after the last step; 0: never"},
      {SLUICE_KEY(validation, batches), .range = {0, kMaxSteps},
       .help = "validate on this many global batches of the held-out data; 0: on all of it, each "
               "sample once"},

      {SLUICE_KEY(generate, prompt),
       .help = "text that the trained model continues after the last step; empty: no sample"},

      {SLUICE_KEY(comm, backend),
       .help = "threads: all ranks in this process; mpi: one process each, under mpirun or srun; "
               "nccl: the same with a GPU each; auto: threads, or where mpirun or srun started "
               "several processes mpi, with cluster.device = cuda nccl"},
      {SLUICE_KEY(comm, train_timeout_seconds),
       .range = {.least = 0, .most = 1e6, .least_excluded = true},
       .help = "a rank that waits longer than this for another gives up and names it"},

      {SLUICE_KEY(cluster, device),
       .help = "what ranks compute on; cuda needs a CUDA build and a GPU (docs/gpu.md)"},
      {SLUICE_KEY(cluster, partitions), .range = {0, 1024},
       .help = "partitions of one GPU, one per rank of the pipeline; 0: ranks share the whole "
               "GPU"},
      {SLUICE_KEY(cluster, sms_per_partition), .range = {0, 1024},
       .help = "SMs (streaming multiprocessors) of each partition; 0: as many as fit"},
      {SLUICE_KEY(cluster, peak_tflops), .range = {0, 1e9},
       .help = "peak of one GPU, or of one rank on the CPU, in TFLOP/s, for the MFU; 0: the known "
               "peak of the GPU, else no MFU"},

      {SLUICE_KEY(metrics, folder), .aliases = {"metrics.save_tb_folder"},
       .help = "folder for metrics.jsonl and TensorBoard event files; empty: write none"},
      {SLUICE_KEY(metrics, log_freq), .range = {1, kMaxSteps},
       .help = "every how many steps a line is printed and a row is written; the first step, the "
               "last and those with a validation always have theirs"},
      {SLUICE_KEY(metrics, progress), .help = "a progress bar, on a terminal only"},

      {SLUICE_KEY(debug, seed), .range = {0, 4294967295.0}, .aliases = {"training.seed"},
       .help = "seed of the initial weights, the data order, masked tokens and stochastic "
               "rounding"},
  };
}

#undef SLUICE_KEY

bool in_range(const ValueRange& range, double value) {
  return (range.least_excluded ? value > range.least : value >= range.least) &&
         (range.most_excluded ? value < range.most : value <= range.most);
}

std::string range_text(const ValueRange& range) {
  if (range.least == range.most) return number(range.least);
  return fmt::format("{} {} to {}{}", range.least_excluded ? "above" : "from", number(range.least),
                     range.most_excluded ? "below " : "", number(range.most));
}

// The choice that `text` spells, in any case, or "".
std::string canonical_choice(const ConfigKey& key, std::string_view text) {
  const std::string wanted = lower(text);
  for (const std::string_view choice : key.choices)
    if (wanted == lower(choice)) return std::string(choice);
  for (const std::string_view synonym : key.synonyms)
    if (wanted == synonym.substr(0, synonym.find('=')))
      return std::string(synonym.substr(synonym.find('=') + 1));
  return "";
}

}  // namespace

std::string ConfigKey::full_name() const { return fmt::format("{}.{}", section, name); }

const std::vector<ConfigKey>& config_schema() {
  static const std::vector<ConfigKey> schema = make_schema();
  return schema;
}

const ConfigKey* find_config_key(std::string_view full_name) {
  for (const ConfigKey& key : config_schema())
    if (full_name == key.full_name() ||
        std::find(key.aliases.begin(), key.aliases.end(), full_name) != key.aliases.end())
      return &key;
  return nullptr;
}

bool is_config_section(std::string_view name) {
  for (const ConfigKey& key : config_schema()) {
    if (name == key.section) return true;
    for (const std::string_view alias : key.aliases)
      if (name == alias.substr(0, alias.find('.'))) return true;
  }
  return false;
}

std::string nearest_config_key(std::string_view full_name) {
  full_name = full_name.substr(0, 80);  // no key is as long; edit distance is a product of lengths
  const auto dot = full_name.rfind('.');
  const std::string_view last = dot == full_name.npos ? full_name : full_name.substr(dot + 1);
  const std::string_view section = dot == full_name.npos ? "" : full_name.substr(0, dot);
  std::vector<std::string> same_section, all;
  for (const ConfigKey& key : config_schema()) {
    if (last == key.name) return key.full_name();  // the right key in the wrong section
    all.push_back(key.full_name());
    if (section == key.section) same_section.emplace_back(key.name);
  }
  const std::string near = nearest_name(last, same_section);
  return near.empty() ? nearest_name(full_name, all) : fmt::format("{}.{}", section, near);
}

std::string allowed_values(const ConfigKey& key) {
  std::string text;
  switch (key.kind) {
    case ValueKind::boolean: text = "true or false"; break;
    case ValueKind::whole: text = "a whole number " + range_text(key.range); break;
    case ValueKind::real:
      text = (key.range.least == key.range.most ? "" : "a number ") + range_text(key.range);
      break;
    case ValueKind::text:
      text = key.choices.empty() ? "text (UTF-8)" : fmt::format("{}", fmt::join(key.choices, ", "));
      break;
    case ValueKind::numbers:
      text = fmt::format("a number {}, or a list of such numbers", range_text(key.range));
      break;
    case ValueKind::rule:
      text = fmt::format("{}, or a list of whole numbers {}", fmt::join(key.choices, ", "),
                         range_text(key.range));
      break;
  }
  return key.reason.empty() ? text : fmt::format("{}: {}", text, key.reason);
}

bool accept_value(const ConfigKey& key, ConfigValue& value) {
  SLUICE_CHECK(value.index() == static_cast<std::size_t>(key.kind), "{} holds kind {}, not {}",
               key.full_name(), value.index(), static_cast<int>(key.kind));
  const auto all_in_range = [&key](const auto& list) {
    return std::all_of(list.begin(), list.end(), [&](auto i) { return in_range(key.range, i); });
  };
  switch (key.kind) {
    case ValueKind::boolean: return true;
    case ValueKind::whole:
      return in_range(key.range, static_cast<double>(std::get<std::int64_t>(value)));
    case ValueKind::real: return in_range(key.range, std::get<double>(value));
    case ValueKind::text: {
      if (key.choices.empty()) return true;
      auto& text = std::get<std::string>(value);
      text = canonical_choice(key, text);
      return !text.empty();
    }
    case ValueKind::numbers: return all_in_range(std::get<std::vector<double>>(value));
    case ValueKind::rule: {
      auto& given = std::get<RuleText>(value);
      if (given.rule.empty())
        return (key.none_is_first || !given.list.empty()) && all_in_range(given.list);
      given.rule = canonical_choice(key, given.rule);
      return !given.rule.empty();
    }
  }
  return false;
}

std::string schema_markdown() {
  const Config defaults;
  std::string text;
  std::string_view section;
  for (const ConfigKey& key : config_schema()) {
    if (key.section != section) {
      section = key.section;
      text += fmt::format("\n## {}\n\n| key | values | default | meaning |\n|---|---|---|---|\n",
                          section);
    }
    std::string aliases;
    if (!key.aliases.empty()) aliases = fmt::format(" (also `{}`)", fmt::join(key.aliases, "`, `"));
    // The reason is for messages; the table has the help.
    ConfigKey plain = key;
    plain.reason = {};
    text += fmt::format("| `{}` | {} | `{}` | {}{} |\n", key.name, allowed_values(plain),
                        toml_value(key.get(defaults)), key.help, aliases);
  }
  return text.substr(1);
}

}  // namespace sluice
