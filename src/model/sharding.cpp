#include "sluice/model/sharding.h"

#include "sluice/base/error.h"
#include "sluice/cost/parameters.h"

namespace sluice {
namespace {

std::vector<at::Tensor> tensors_of(const std::vector<Parameter>& parameters,
                                   at::Tensor Parameter::*tensor) {
  std::vector<at::Tensor> out;
  for (const Parameter& parameter : parameters)
    out.push_back(parameter.*tensor);
  return out;
}

}  // namespace

WeightMemory::WeightMemory(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    const c10::Storage& storage = tensor.storage();
    bool known = false;
    for (const c10::Storage& other : storages_)
      known = known || other.is_alias_of(storage);
    if (known) continue;
    SLUICE_CHECK(storage.allocator(), "a weight of {} bytes has no allocator", storage.nbytes());
    storages_.push_back(storage);
    bytes_.push_back(storage.nbytes());
  }
}

void WeightMemory::allocate() {
  for (std::size_t n = 0; n < storages_.size(); ++n) {
    c10::StorageImpl& storage = *storages_[n].unsafeGetStorageImpl();
    storage.set_data_ptr_noswap(storage.allocator()->allocate(bytes_[n]));
    storage.set_nbytes(bytes_[n]);
  }
}

void WeightMemory::release() {
  for (const c10::Storage& held : storages_) {
    c10::StorageImpl& storage = *held.unsafeGetStorageImpl();
    storage.set_data_ptr_noswap(at::DataPtr(nullptr, storage.device()));
    storage.set_nbytes(0);
  }
}

ShardedUnit::ShardedUnit(std::vector<Parameter>& parameters, const ShardRanks& shards,
                         const std::string& name)
    : parameters_(parameters),
      shards_(shards),
      values_label_("weights of " + name),
      gradients_label_("gradients of " + name),
      values_(tensors_of(parameters, &Parameter::value)),
      gradients_(tensors_of(parameters, &Parameter::gradient)) {
  const Parameter& first = parameters_.front();
  for (const Parameter& parameter : parameters_)
    SLUICE_CHECK(parameter.value.scalar_type() == first.value.scalar_type(),
                 "{} is of another type", parameter.name);
  own_values_ = at::empty({count_of(rank())}, first.value.options());
  own_gradients_ = at::zeros({count_of(rank())}, first.gradient.options());
  each(rank(), &Parameter::value, own_values_,
       [](at::Tensor rows, at::Tensor place) { place.copy_(rows); });
  std::vector<at::Tensor> values, gradients;
  each(rank(), &Parameter::value, own_values_,
       [&](const at::Tensor&, const at::Tensor& place) { values.push_back(place); });
  each(rank(), &Parameter::gradient, own_gradients_,
       [&](const at::Tensor&, const at::Tensor& place) { gradients.push_back(place); });
  for (std::size_t n = 0; n < parameters_.size(); ++n)
    kept_.push_back({&parameters_[n], values[n], gradients[n], rows_of(parameters_[n], rank())});
  values_.release();
  gradients_.release();
}

RowRange ShardedUnit::rows_of(const Parameter& parameter, int rank) const {
  const BlockRows rows = share_rows(parameter.value.size(0), rank, size());
  return {rows.begin, rows.end};
}

std::int64_t ShardedUnit::count_of(int rank) const {
  std::int64_t count = 0;
  for (const Parameter& parameter : parameters_)
    count += parameter.value.numel() / parameter.value.size(0) * rows_of(parameter, rank).count();
  return count;
}

template <typename Visit>
void ShardedUnit::each(int rank, at::Tensor Parameter::*tensor, const at::Tensor& packed,
                       const Visit& visit) const {
  std::int64_t begin = 0;
  for (const Parameter& parameter : parameters_) {
    const RowRange rows = rows_of(parameter, rank);
    const at::Tensor part = (parameter.*tensor).slice(0, rows.begin, rows.end);
    visit(part, packed.slice(0, begin, begin + part.numel()).view(part.sizes()));
    begin += part.numel();
  }
}

// Sends sent[r] to and receives pieces[r] from every other rank r, unless they are empty.
void ShardedUnit::post(const std::vector<at::Tensor>& sent, const std::vector<at::Tensor>& pieces,
                       TrafficClass traffic, const std::string& label,
                       std::vector<Request>& requests) {
  for (int step = 1; step < size(); ++step) {
    const int from = (rank() + size() - step) % size(), to = (rank() + step) % size();
    const at::Tensor& piece = pieces[static_cast<std::size_t>(from)];
    const at::Tensor& part = sent[static_cast<std::size_t>(to)];
    if (piece.numel() > 0)
      requests.push_back(
          shards_.ranks->post_recv(Lane::collectives, from, tensor_bytes(piece), label));
    if (part.numel() > 0)
      requests.push_back(
          shards_.ranks->post_send(Lane::collectives, to, tensor_bytes(part), label));
    shards_.traffic->add(traffic, part.numel());
  }
}

void ShardedUnit::begin_gather() {
  if (state_ != State::dropped) return;
  for (int r = 0; r < size(); ++r)
    arriving_.push_back(r == rank() ? own_values_
                                    : at::empty({count_of(r)}, own_values_.options()));
  post(std::vector<at::Tensor>(static_cast<std::size_t>(size()), own_values_), arriving_,
       TrafficClass::parameter, values_label_, gather_);
  state_ = State::arriving;
}

void ShardedUnit::finish_gather() {
  begin_gather();
  if (state_ == State::whole) return;
  shards_.ranks->wait_all(gather_);
  gather_.clear();
  values_.allocate();
  for (int r = 0; r < size(); ++r)
    each(r, &Parameter::value, arriving_[static_cast<std::size_t>(r)],
         [](at::Tensor rows, const at::Tensor& piece) { rows.copy_(piece); });
  arriving_.clear();
  state_ = State::whole;
}

void ShardedUnit::drop() {
  if (state_ == State::arriving) shards_.ranks->wait_all(gather_);
  gather_.clear();
  arriving_.clear();
  values_.release();
  state_ = State::dropped;
}

void ShardedUnit::open_gradients() {
  gradients_.allocate();
  for (Parameter& parameter : parameters_)
    parameter.gradient.zero_();
}

void ShardedUnit::begin_sum() {
  for (int r = 0; r < size(); ++r) {
    sent_.push_back(at::empty({count_of(r)}, own_gradients_.options()));
    each(r, &Parameter::gradient, sent_.back(),
         [](const at::Tensor& rows, at::Tensor place) { place.copy_(rows); });
  }
  gradients_.release();
  for (int r = 0; r < size(); ++r)
    pieces_.push_back(r == rank() ? sent_[static_cast<std::size_t>(r)]
                                  : at::empty_like(own_gradients_));
  post(sent_, pieces_, TrafficClass::gradient, gradients_label_, sum_);
}

void ShardedUnit::finish_sum() {
  shards_.ranks->wait_all(sum_);
  sum_.clear();
  own_gradients_.add_(sum_in_order(pieces_));
  sent_.clear();
  pieces_.clear();
}

void UnitWalk::next() {
  if (units_.empty()) return;
  leave();
  SLUICE_CHECK(begun_ < uses_.size(), "an op uses more than {} units", uses_.size());
  const UnitUse& use = uses_[begun_++];
  ShardedUnit& unit = *units_[use.unit];
  if (use.weights) unit.finish_gather();
  if (begun_ < uses_.size() && uses_[begun_].weights) units_[uses_[begun_].unit]->begin_gather();
  if (use.gradients) unit.open_gradients();
}

void UnitWalk::leave() {
  if (begun_ == 0) return;
  const UnitUse& use = uses_[begun_ - 1];
  ShardedUnit& unit = *units_[use.unit];
  if (use.weights && !keep_) unit.drop();
  if (!use.gradients) return;
  if (summing_) summing_->finish_sum();
  unit.begin_sum();
  summing_ = &unit;
}

void UnitWalk::finish() {
  if (units_.empty()) return;
  SLUICE_CHECK(begun_ == uses_.size(), "an op used {} of {} units", begun_, uses_.size());
  leave();
  if (summing_) summing_->finish_sum();
}

void UnitWalk::pass() {
  for (std::size_t n = 0; n < uses_.size(); ++n)
    next();
  finish();
}

}  // namespace sluice
