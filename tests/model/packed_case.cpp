#include "model/packed_case.h"

#include <ATen/record_function.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "sluice/model/attention.h"

namespace sluice::test {
namespace {

// (B, heads, n, head_dim) of a batch: q, k, v and the gradient of the output.
struct Heads {
  at::Tensor q, k, v, d_out;
};

Heads random_heads(const PackedCase& c) {
  const auto draw = [&](std::int64_t heads) {
    return at::randn({static_cast<std::int64_t>(c.starts.size()), heads, c.length(), c.head_dim})
        .to(at::kBFloat16)
        .to(at::kFloat);
  };
  at::manual_seed(5);
  return {draw(c.heads), draw(c.kv_heads), draw(c.kv_heads), draw(c.heads)};
}

// One slice of a tensor of heads as rows (B n, heads * head_dim), and such rows as heads.
at::Tensor rows_of(const at::Tensor& heads, std::int64_t begin, std::int64_t end) {
  return heads.slice(2, begin, end).transpose(1, 2).flatten(2).flatten(0, 1);
}
at::Tensor heads_of(const at::Tensor& rows, const at::Tensor& like) {
  return rows.unflatten(1, {like.size(1), like.size(3)})
      .unflatten(0, {like.size(0), rows.size(0) / like.size(0)})
      .transpose(1, 2);
}

// Output and gradients of the whole sequences.
using Results = std::vector<std::pair<std::string, at::Tensor>>;

Results plain(const PackedCase& c, const Heads& heads) {
  const AttentionInput input{.q = heads.q, .keys = {heads.k}, .values = {heads.v}};
  const Documents documents{.starts = c.starts};
  const SliceBounds whole = {0, c.length()};
  const AttentionOutput output = attention(input, documents, whole);
  std::vector<at::Tensor> dk = {at::zeros_like(heads.k)}, dv = {at::zeros_like(heads.v)};
  const at::Tensor dq = attention_backward(heads.d_out, input, output, documents, whole, dk, dv);
  return {{"out", output.out}, {"dq", dq}, {"dk", dk[0]}, {"dv", dv[0]}};
}

Results packed(const PackedCase& c, const Heads& heads, at::Device device, std::size_t& num_long) {
  const std::size_t slices = c.bounds.size() - 1;
  const auto there = [&](const at::Tensor& x) { return x.to(device, at::kBFloat16); };
  AttentionInput all;
  std::vector<at::Tensor> queries;
  std::vector<PackedDocuments> documents;
  std::vector<AttentionOutput> outputs;
  const auto input_of = [&](std::size_t slice) {
    const auto end = static_cast<std::ptrdiff_t>(slice) + 1;
    return AttentionInput{.q = queries[slice],
                          .keys = {all.keys.begin(), all.keys.begin() + end},
                          .values = {all.values.begin(), all.values.begin() + end}};
  };
  for (std::size_t s = 0; s < slices; ++s) {
    const std::int64_t begin = c.bounds[s], end = c.bounds[s + 1];
    const at::Tensor q = rows_of(heads.q, begin, end), k = rows_of(heads.k, begin, end);
    // As a block has them: columns of one product.
    auto parts = there(at::cat({q, k, rows_of(heads.v, begin, end)}, 1))
                     .split_with_sizes({q.size(1), k.size(1), k.size(1)}, 1);
    for (at::Tensor& part : parts)
      if (c.kept_apart && &part != parts.data()) part = part.contiguous();
    queries.push_back(heads_of(parts[0], heads.q));
    all.keys.push_back(heads_of(parts[1], heads.k));
    all.values.push_back(heads_of(parts[2], heads.v));
    documents.push_back(
        packed_documents(packed_calls({.starts = c.starts}, c.bounds, s, c.lengths()), device));
    num_long += documents.back().calls.long_documents.size();
    outputs.push_back(packed_attention(input_of(s), documents[s], c.bounds));
    // The output is kept as rows.
    AttentionOutput& output = outputs.back();
    output.out = heads_of(rows_of(output.out, 0, end - begin).contiguous(), output.out);
    EXPECT_TRUE(output.lse.is_contiguous());
  }
  std::vector<at::Tensor> key_gradients(slices), value_gradients(slices);
  std::vector<at::Tensor> dq(slices), dk(slices), dv(slices);
  const auto sum = [](const at::Tensor& own, const at::Tensor& more) {
    const at::Tensor wide = own.to(at::kFloat);
    return more.defined() ? wide + more : wide;
  };
  for (std::size_t s = slices; s-- > 0;) {
    const at::Tensor d_out =
        heads_of(there(rows_of(heads.d_out, c.bounds[s], c.bounds[s + 1])), heads.d_out);
    const AttentionGradients gradients = packed_attention_backward(
        d_out, input_of(s), outputs[s], documents[s], c.bounds, key_gradients, value_gradients);
    dq[s] = sum(gradients.own.dq, gradients.more.dq);
    dk[s] = sum(gradients.own.dk, gradients.more.dk);
    dv[s] = sum(gradients.own.dv, gradients.more.dv);
    key_gradients.resize(s);
    value_gradients.resize(s);
  }
  std::vector<at::Tensor> out;
  for (const AttentionOutput& output : outputs)
    out.push_back(output.out);
  const auto whole = [](const std::vector<at::Tensor>& parts) {
    return at::cat(parts, 2).to(at::kCPU, at::kFloat);
  };
  return {{"out", whole(out)}, {"dq", whole(dq)}, {"dk", whole(dk)}, {"dv", whole(dv)}};
}

}  // namespace

LocalShape PackedCase::shape() const {
  return {.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim};
}

std::vector<std::int64_t> PackedCase::lengths() const {
  ModelShape shape;
  shape.heads = heads;
  shape.kv_heads = kv_heads;
  shape.dim = heads * head_dim;
  return long_lengths(shape, 1, at::kBFloat16, bounds, long_document);
}

std::vector<PackedCase> packed_cases(std::int64_t u) {
  return {
      {"one sequence", {0, 8 * u}, {{0, 2 * u + 5, 2 * u + 9, 4 * u, 5 * u - 3, 7 * u - 9}}, u},
      {"several sequences",
       {0, 4 * u},
       {{0, u + 3, 2 * u}, {0, 1, 2, u}, {0, 2 * u + 1}, {0, 4 * u - u / 2}, {0}},
       u,
       4,
       2},
      {"only long ones", {0, 4 * u}, {{0, u, 2 * u + 1}, {0, 2 * u}}, u, 2, 1, 64},
      {"no long ones", {0, 3 * u}, {{0, u - 1, u + 7, 2 * u}, {0, u / 2, u}}, 0},
      // Queries of one document each are a case of their own for flash attention.
      {"long ones and one token", {0, 2 * u + 1}, {{0, 2 * u}, {0, 1}}, u, 4, 2},
      {"slices",
       {0, 2 * u, 3 * u + 7, 6 * u, 8 * u},
       {{0, u / 2, 5 * u}, {0, 2 * u + 1, 3 * u + 2, 6 * u, 7 * u}},
       u,
       4,
       2},
      {"slices, keys and values apart",
       {0, 3 * u, 6 * u},
       {{0, u + 4, 4 * u, 4 * u + 3}, {0, 6 * u - 2}},
       u,
       4,
       2,
       16,
       true},
      {"heads of no multiple of 8", {0, 3 * u, 4 * u}, {{0, 2 * u + 1, 3 * u}}, u, 2, 1, 6},
  };
}

PackedCase random_packed_case(int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  PackedCase c;
  c.name = fmt::format("seed {}", seed);
  c.bounds = {0};
  c.long_document = 8 + below(30);
  for (std::int64_t slices = 1 + below(4); slices > 0; --slices)
    c.bounds.push_back(c.bounds.back() + 1 + below(150));
  for (std::int64_t sequences = 1 + below(3); sequences > 0; --sequences) {
    std::vector<std::int64_t> starts = {0};
    const std::int64_t longest = 2 + below(200);
    while (true) {
      const std::int64_t next = starts.back() + 1 + below(longest);
      if (next >= c.length()) break;
      starts.push_back(next);
    }
    c.starts.push_back(std::move(starts));
  }
  c.kv_heads = below(2) == 0 ? 4 : 2;
  c.kept_apart = below(4) == 0;
  return c;
}

PackedOutcome run_packed(const PackedCase& c, at::Device device) {
  const Heads heads = random_heads(c);
  PackedOutcome outcome;
  const Results expected = plain(c, heads);
  const Results actual = packed(c, heads, device, outcome.num_long);
  for (std::size_t n = 0; n < expected.size(); ++n) {
    const auto& [name, wanted] = expected[n];
    const auto mean_squares = [](const at::Tensor& x) { return x.square().mean({1, 3}); };
    // A token that sees only itself has no gradient by its query: the others count a little, too.
    const at::Tensor size =
        mean_squares(wanted).clamp_min(0.1 * wanted.square().mean().item<double>());
    const at::Tensor share = (mean_squares(actual[n].second - wanted) / size).sqrt();
    const auto place = share.nan_to_num(1e9).argmax().item<std::int64_t>();
    const double error = share.flatten()[place].item<double>();
    if (error <= outcome.error) continue;  // a NaN is no less
    outcome.error = error;
    outcome.where =
        fmt::format("{} of token {} of sequence {}", name, place % c.length(), place / c.length());
    if (std::isnan(error)) break;
  }
  return outcome;
}

std::set<std::string> plans_used(const std::function<void()>& run) {
  // A callback has no state of its own.
  static thread_local std::set<std::string> keys;
  keys.clear();
  const at::CallbackHandle handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
            std::string key = call.name();
            if (key.find("_scaled_dot_product_cudnn_attention") == key.npos) return nullptr;
            for (const c10::IValue& value : call.inputs())
              if (value.isTensor() && value.toTensor().defined() && value.toTensor().dim() > 1)
                key += fmt::format(" {} by {}", fmt::join(value.toTensor().sizes(), "x"),
                                   fmt::join(value.toTensor().strides(), ","));
            keys.insert(key);
            return nullptr;
          })
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION}));
  run();
  at::removeCallback(handle);
  return keys;
}

}  // namespace sluice::test
