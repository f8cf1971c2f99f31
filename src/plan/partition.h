// How many layers each stage gets, so that the slowest device is as fast as it can be.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sluice/plan/partition_query.h"

namespace sluice {

// Deals `layers` equal layers to the stages; the first also holds the embedding, the last the head.
// Both may get no layer and are then that end alone; every other gets at least one. Of all ways to
// deal that keep each device within the cap, it is one with
//   1. the least work on the busiest device;
//   2. of those, the smallest differences in work between the stages of a device, added up over the
//      devices: a V or a loop flows best when its stages take as long as each other;
//   3. of those, the least memory on the device with most; where devices have caps of their own,
//   the
//      one that comes nearest to its cap counts;
//   4. of those, the least sum of the devices' squared work.
// Exact: all splits of a device's layers over its stages are looked at, as far as they can still be
// better, and the numbers of the devices are chosen by a dynamic program over the layers dealt so
// far. A pipe takes its share of the microbatches; devices with the same stages count as one.
//
// Where devices share some of their stages and not all (several pipes on an odd number of devices),
// a search: from even layers, and from layers dealt one by one, it moves a layer, or on few stages
// two, for as long as that makes the busiest device's work less, then that of the next. So no
// device works longer than the busiest with even layers, and no such move is left that helps; the
// least work of all splits may be less. There a cap that is said to be the least possible is the
// least that was found.
//
// Throws UserError when there are too few layers, and when no split fits the caps, naming the least
// that would do.
std::vector<std::int64_t> best_partition(const PartitionQuery& query);

// What such a split gives each device.
std::vector<double> device_work(const PartitionQuery& query, std::span<const std::int64_t> layers);
std::vector<double> device_bytes(const PartitionQuery& query, std::span<const std::int64_t> layers);

}  // namespace sluice
