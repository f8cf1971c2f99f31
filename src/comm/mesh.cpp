#include "sluice/comm/mesh.h"

#include <map>
#include <vector>

#include "sluice/base/error.h"

namespace sluice {

// One group for each value that `key` gives a place. Every rank makes all of them, in one order,
// and keeps its own.
template <typename Key>
Mesh::Group Mesh::group_by(const Key& key, bool own) {
  std::map<int, std::vector<int>> members;
  for (int rank = 0; rank < world_.size(); ++rank)
    members[key(place_of(rank, shape_))].push_back(rank);
  if (members.size() == 1 && !own) return {nullptr, &world_};
  Group mine;
  for (const auto& [value, ranks] : members)
    if (auto made = world_.group(ranks)) mine.own = std::move(made);
  mine.use = mine.own.get();
  return mine;
}

Mesh::Mesh(Communicator& world, const MeshShape& shape, bool apart) : world_(world), shape_(shape) {
  SLUICE_CHECK(world.size() == shape.size(), "{} ranks for a mesh of {}", world.size(),
               shape.size());
  place_ = place_of(world.rank(), shape);
  const MeshShape& s = shape_;
  const auto row = [&](const MeshPlace& p) { return p.data * s.tensor + p.tensor; };
  pipeline_ = group_by(row);
  if (apart) boundaries_ = group_by(row, true);
  tensor_ = group_by([&](const MeshPlace& p) { return p.data * s.pipeline + p.pipeline; });
  const auto column = [&](const MeshPlace& p) { return p.pipeline * s.tensor + p.tensor; };
  data_ = group_by(column);
  const int columns = s.pipeline * s.tensor;
  shard_ = group_by([&](const MeshPlace& p) { return p.data / s.shard * columns + column(p); });
  replica_ = group_by([&](const MeshPlace& p) { return p.data % s.shard * columns + column(p); });
}

}  // namespace sluice
