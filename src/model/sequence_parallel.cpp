#include "sluice/model/sequence_parallel.h"

#include <vector>

#include "sluice/cost/head_share.h"

namespace sluice {
namespace {

// The rows of each rank.
std::vector<at::Tensor> by_rank(const at::Tensor& rows, const TensorGroup& group) {
  return rows.chunk(group.size(), 0);
}

}  // namespace

at::Tensor tokens_to_heads(const at::Tensor& qkv, TensorGroup& group, const LocalShape& local,
                           std::string_view label) {
  const std::int64_t width = local.head_dim, keys = local.q_dim(), values = keys + local.kv_dim();
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < group.size(); ++rank) {
    const HeadShare share = head_share(local, group.size(), rank);
    std::vector<at::Tensor> columns = {
        qkv.narrow(1, share.first_head * width, share.heads * width)};
    for (const std::int64_t begin : {keys, values})
      for (const std::int64_t head : share.kv_heads)
        columns.push_back(qkv.narrow(1, begin + head * width, width));
    parts.push_back(at::cat(columns, 1));
  }
  return group.all_to_all(std::move(parts), TrafficClass::sequence, label);
}

at::Tensor heads_to_qkv(const at::Tensor& d_heads, TensorGroup& group, const LocalShape& local,
                        std::string_view label) {
  const std::int64_t width = local.head_dim, keys = local.q_dim(), values = keys + local.kv_dim();
  const at::Tensor came = group.all_to_all(by_rank(d_heads, group), TrafficClass::sequence, label);
  const std::vector<at::Tensor> ranks = by_rank(came, group);
  at::Tensor d_qkv = at::empty({ranks[0].size(0), local.qkv_dim()}, d_heads.options());
  // Where each key head was on one rank, a rank's are neighbours.
  const bool own_keys = local.kv_heads % group.size() == 0;
  // Else, of each key head, and of each value head: what the ranks that had it computed.
  std::vector<std::vector<at::Tensor>> pieces(static_cast<std::size_t>(2 * local.kv_heads));
  for (int rank = 0; rank < group.size(); ++rank) {
    const at::Tensor& theirs = ranks[static_cast<std::size_t>(rank)];
    const HeadShare share = head_share(local, group.size(), rank);
    d_qkv.narrow(1, share.first_head * width, share.heads * width)
        .copy_(theirs.narrow(1, 0, share.heads * width));
    std::int64_t column = share.heads * width;
    if (own_keys) {
      const std::int64_t first = share.kv_heads.front() * width,
                         columns = std::ssize(share.kv_heads) * width;
      d_qkv.narrow(1, keys + first, columns).copy_(theirs.narrow(1, column, columns));
      d_qkv.narrow(1, values + first, columns).copy_(theirs.narrow(1, column + columns, columns));
      continue;
    }
    for (const std::int64_t first : {std::int64_t{0}, local.kv_heads})
      for (const std::int64_t head : share.kv_heads) {
        pieces[static_cast<std::size_t>(first + head)].push_back(theirs.narrow(1, column, width));
        column += width;
      }
  }
  for (std::int64_t head = 0; !own_keys && head < local.kv_heads; ++head) {
    d_qkv.narrow(1, keys + head * width, width)
        .copy_(sum_in_order(pieces[static_cast<std::size_t>(head)]));
    d_qkv.narrow(1, values + head * width, width)
        .copy_(sum_in_order(pieces[static_cast<std::size_t>(local.kv_heads + head)]));
  }
  return d_qkv;
}

at::Tensor heads_to_tokens(const at::Tensor& heads, TensorGroup& group, std::string_view label) {
  return at::cat(
      by_rank(group.all_to_all(by_rank(heads, group), TrafficClass::sequence, label), group), 1);
}

at::Tensor queries_to_heads(const at::Tensor& tokens, TensorGroup& group, std::string_view label) {
  return group.all_to_all(tokens.chunk(group.size(), 1), TrafficClass::sequence, label);
}

}  // namespace sluice
