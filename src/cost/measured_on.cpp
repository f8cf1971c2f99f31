#include "sluice/cost/measured_on.h"

#include <fmt/format.h>

#include "sluice/base/names.h"
#include "sluice/base/text.h"

namespace sluice {

const std::vector<MeasuredField>& measured_fields() {
  using M = MeasuredOn;
  static const std::vector<MeasuredField> fields = {
      {"shape", true, "model.shape", nullptr, &M::shape},
      {"layers", true, "model.layers", &M::layers, nullptr},
      {"dim", true, "model.dim", &M::dim, nullptr},
      {"heads", true, "model.heads", &M::heads, nullptr},
      {"kv_heads", true, "model.kv_heads", &M::kv_heads, nullptr},
      {"ffn_dim", true, "model.ffn_dim", &M::ffn_dim, nullptr},
      {"vocab_size", true, "model.vocab_size", &M::vocab_size, nullptr},
      {"sequence_length", false, "training.sequence_length", &M::sequence_length, nullptr},
      {"sequences", false, "the number of sequences in a microbatch", &M::sequences, nullptr},
      {"dtype", false, "training.dtype", nullptr, &M::dtype},
      {"recompute", false, "recompute.level", nullptr, &M::recompute},
      {"tensor_parallel_degree", false, "parallelism.tensor_parallel_degree",
       &M::tensor_parallel_degree, nullptr},
      {"device", false, "cluster.device", nullptr, &M::device}};
  return fields;
}

std::string MeasuredField::value(const MeasuredOn& on) const {
  return text ? on.*text : fmt::format("{}", on.*number);
}

void MeasuredOn::set_model(const ModelShape& model, RecomputeLevel level) {
  shape = name_of(model.family);
  recompute = name_of(level);
  layers = model.layers;
  dim = model.dim;
  heads = model.heads;
  kv_heads = model.kv_heads;
  ffn_dim = model.ffn_dim;
  vocab_size = model.vocab_size;
}

std::string MeasuredOn::text() const {
  return fmt::format(
      "{} of {} layers, dim {}, {} heads, {} kv_heads, ffn_dim {}, vocab_size {}; "
      "{} x {} tokens, {}, recompute {}, tensor_parallel_degree {}, {}",
      shape, layers, dim, heads, kv_heads, ffn_dim, vocab_size, sequences, sequence_length, dtype,
      recompute, tensor_parallel_degree, device);
}

std::string MeasuredOn::json(const std::string& indent) const {
  std::vector<std::string> model, rest;
  for (const MeasuredField& field : measured_fields()) {
    const std::string value = field.value(*this);
    (field.of_model ? model : rest)
        .push_back(fmt::format("\"{}\": {}", field.name, field.text ? json_quote(value) : value));
  }
  return fmt::format("{{\n{0}  \"model\": {{{1}}},\n{0}  {2}\n{0}}}", indent, join(model, ", "),
                     join(rest, fmt::format(",\n{}  ", indent)));
}

std::vector<std::string> measured_differences(const MeasuredOn& measured, const MeasuredOn& run) {
  std::vector<std::string> out;
  for (const MeasuredField& field : measured_fields()) {
    std::string was = field.value(measured), is = field.value(run);
    if (field.text == &MeasuredOn::device)
      for (std::string* device : {&was, &is})
        device->resize(std::min(device->find(','), device->size()));
    if (was != is)
      out.push_back(fmt::format("{} is {} and was {} when measured", field.config_key, is, was));
  }
  return out;
}

}  // namespace sluice
