// The groups of a rank in the mesh (run/mesh_shape.h).
#pragma once

#include <memory>
#include <optional>

#include "sluice/comm/communicator.h"
#include "sluice/run/mesh_shape.h"

namespace sluice {

// One rank's view: the groups of ranks that differ from it along one axis only, in the order of
// that axis. A rank's number in a group is its index on the axis.
class Mesh {
 public:
  // Every rank of the world calls it, at the start. The world outlives the mesh. `apart`: tensors
  // between stages, which may be under way from one step to the next, have a group of their own.
  Mesh(Communicator& world, const MeshShape& shape, bool apart = false);

  const MeshShape& shape() const { return shape_; }
  const MeshPlace& place() const { return place_; }
  int shard() const { return place_.data % shape_.shard; }
  int replica() const { return place_.data / shape_.shard; }

  Communicator& world() const { return world_; }
  Communicator& pipeline() const { return *pipeline_.use; }
  Communicator& boundaries() const { return *(boundaries_ ? *boundaries_ : pipeline_).use; }
  Communicator& tensor() const { return *tensor_.use; }
  Communicator& data() const { return *data_.use; }
  Communicator& shard_group() const { return *shard_.use; }
  Communicator& replica_group() const { return *replica_.use; }

 private:
  // The world itself if the group holds all ranks.
  struct Group {
    std::unique_ptr<Communicator> own;
    Communicator* use = nullptr;
  };
  template <typename Key>
  Group group_by(const Key& key, bool own = false);

  Communicator& world_;
  MeshShape shape_;
  MeshPlace place_;
  Group pipeline_, tensor_, data_, shard_, replica_;
  std::optional<Group> boundaries_;
};

}  // namespace sluice
