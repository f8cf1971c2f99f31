#include "sluice/optim/data_parallel.h"

#include "sluice/base/error.h"
#include "sluice/cost/parameters.h"

namespace sluice {
namespace {

// Some rows of each tensor, one after the other.
template <typename Tensors, typename Rows>
at::Tensor pack(const std::vector<Weight>& weights, const Tensors& tensor_of, const Rows& rows_of) {
  std::vector<at::Tensor> flat;
  for (const Weight& weight : weights) {
    const RowRange rows = rows_of(weight);
    flat.push_back(weight.rows_of(tensor_of(weight), rows).reshape({-1}));
    SLUICE_CHECK(flat.back().scalar_type() == flat[0].scalar_type(), "{} is of another type",
                 weight.name);
  }
  return flat.size() == 1 ? flat[0] : at::cat(flat);
}

// The inverse of pack.
template <typename Tensors, typename Rows>
void unpack(const at::Tensor& packed, const std::vector<Weight>& weights, const Tensors& tensor_of,
            const Rows& rows_of) {
  std::int64_t begin = 0;
  for (const Weight& weight : weights) {
    const RowRange rows = rows_of(weight);
    at::Tensor into = weight.rows_of(tensor_of(weight), rows);
    into.copy_(packed.slice(0, begin, begin + into.numel()).view(into.sizes()));
    begin += into.numel();
  }
}

// An uninitialised buffer for the packed rows of all weights.
template <typename Rows>
at::Tensor room(const std::vector<Weight>& weights, const Rows& rows_of, const at::Tensor& like) {
  std::int64_t elements = 0;
  for (const Weight& weight : weights)
    elements += weight.width() * rows_of(weight).count();
  return at::empty({elements}, like.options());
}

const at::Tensor& gradient_of(const Weight& weight) { return weight.gradient; }
const at::Tensor& value_of(const Weight& weight) { return weight.value; }

}  // namespace

RowRange DataParallel::own_rows(std::int64_t rows, int owner) const {
  const BlockRows own = shard_rows(rows, mesh_.shard(), mesh_.shape().shard, owner);
  return {own.begin, own.end};
}

RowRange DataParallel::rows_summed_by(int shard, int replica, const Weight& weight) const {
  const MeshShape& shape = mesh_.shape();
  const BlockRows rows =
      summed_rows(weight.rows(), shard, shape.shard, replica, shape.replicate, weight.owner);
  return {rows.begin, rows.end};
}

// The place of a rank among those that add up gradients.
RowRange DataParallel::rows_summed_by(int adding_rank, const Weight& weight) const {
  if (sharded_) return rows_summed_by(mesh_.shard(), adding_rank, weight);
  const int shards = mesh_.shape().shard;
  return rows_summed_by(adding_rank % shards, adding_rank / shards, weight);
}

// A bucket holds whole weights. A weight larger than a bucket gets one of its own.
std::vector<DataParallel::Bucket> DataParallel::buckets_of(std::span<const Weight> weights) const {
  std::vector<Bucket> buckets;
  std::int64_t room = 0;
  for (const Weight& weight : weights) {
    const auto bytes = static_cast<std::int64_t>(weight.gradient.nbytes());
    if (buckets.empty() || bytes > room) {
      buckets.emplace_back();
      room = bucket_bytes_;
    }
    buckets.back().weights.push_back(weight);
    room -= bytes;
  }
  return buckets;
}

// Sends sent[r] to and receives pieces[r] from every other rank r of the group. Nothing is sent
// where the weights are too small for a rank to have rows of them.
void DataParallel::post(Bucket& bucket, Communicator& group, TrafficClass traffic,
                        const char* label) {
  for (int step = 1; step < group.size(); ++step) {
    const int from = (group.rank() + group.size() - step) % group.size();
    const int to = (group.rank() + step) % group.size();
    const at::Tensor& piece = bucket.pieces[static_cast<std::size_t>(from)];
    const at::Tensor& sent = bucket.sent[static_cast<std::size_t>(to)];
    if (piece.numel() > 0)
      bucket.requests.push_back(
          group.post_recv(Lane::collectives, from, tensor_bytes(piece), label));
    if (sent.numel() > 0)
      bucket.requests.push_back(group.post_send(Lane::collectives, to, tensor_bytes(sent), label));
    traffic_.add(traffic, sent.numel());
  }
}

void DataParallel::begin_sums(std::span<const Weight> weights) {
  Communicator& group = adding_ranks();
  if (group.size() == 1) return;
  for (Bucket& bucket : buckets_of(weights)) {
    for (int rank = 0; rank < group.size(); ++rank)
      bucket.sent.push_back(pack(bucket.weights, gradient_of, [&](const Weight& weight) {
        return rows_summed_by(rank, weight);
      }));
    const at::Tensor& mine = bucket.sent[static_cast<std::size_t>(group.rank())];
    for (int rank = 0; rank < group.size(); ++rank)
      bucket.pieces.push_back(rank == group.rank() ? mine : at::empty_like(mine));
    post(bucket, group, TrafficClass::gradient, "gradients");
    under_way_.push_back(std::move(bucket));
  }
}

void DataParallel::finish_sums() {
  Communicator& group = adding_ranks();
  for (Bucket& bucket : under_way_) {
    group.wait_all(bucket.requests);
    bucket.requests.clear();
    const at::Tensor sum = sum_in_order(bucket.pieces);
    unpack(sum, bucket.weights, gradient_of,
           [&](const Weight& weight) { return rows_summed_by(group.rank(), weight); });
    bucket.pieces.clear();
    bucket.sent.assign(1, sum);
    exchange_sums(bucket);
  }
  for (Bucket& bucket : under_way_) {
    mesh_.replica_group().wait_all(bucket.requests);
    for (int replica = 0; replica < static_cast<int>(bucket.pieces.size()); ++replica)
      unpack(bucket.pieces[static_cast<std::size_t>(replica)], bucket.weights, gradient_of,
             [&](const Weight& weight) { return rows_summed_by(mesh_.shard(), replica, weight); });
  }
  under_way_.clear();
}

// Exchanges sums among the ranks that update the same rows. Each has added up a part of these rows,
// sent[0].
void DataParallel::exchange_sums(Bucket& bucket) {
  const MeshShape& shape = mesh_.shape();
  if (shape.replicate == 1) return;
  const at::Tensor mine = bucket.sent[0];
  bucket.sent.assign(static_cast<std::size_t>(shape.replicate), mine);
  for (int replica = 0; replica < shape.replicate; ++replica) {
    const auto theirs = [&](const Weight& weight) {
      return rows_summed_by(mesh_.shard(), replica, weight);
    };
    bucket.pieces.push_back(replica == mesh_.replica() ? mine : room(bucket.weights, theirs, mine));
  }
  post(bucket, mesh_.replica_group(), TrafficClass::gradient, "gradient sums");
}

void DataParallel::gather_values(std::span<const Weight> weights) {
  const int shards = mesh_.shape().shard;
  if (shards == 1 || sharded_) return;
  Communicator& group = mesh_.shard_group();
  const auto rows_of = [&](int shard) {
    return [shard, shards](const Weight& weight) {
      const BlockRows rows = shard_rows(weight.rows(), shard, shards, weight.owner);
      return RowRange{rows.begin, rows.end};
    };
  };
  const auto finish = [&](Bucket& bucket) {
    group.wait_all(bucket.requests);
    for (int shard = 0; shard < shards; ++shard)
      if (shard != group.rank())
        unpack(bucket.pieces[static_cast<std::size_t>(shard)], bucket.weights, value_of,
               rows_of(shard));
    bucket = {};
  };
  // One bucket is unpacked while the next is under way.
  std::vector<Bucket> buckets = buckets_of(weights);
  for (std::size_t n = 0; n < buckets.size(); ++n) {
    Bucket& bucket = buckets[n];
    const at::Tensor mine = pack(bucket.weights, value_of, rows_of(group.rank()));
    bucket.sent.assign(static_cast<std::size_t>(shards), mine);
    for (int shard = 0; shard < shards; ++shard)
      bucket.pieces.push_back(room(bucket.weights, rows_of(shard), mine));
    post(bucket, group, TrafficClass::parameter, "weights");
    if (n > 0) finish(buckets[n - 1]);
  }
  if (!buckets.empty()) finish(buckets.back());
}

}  // namespace sluice
