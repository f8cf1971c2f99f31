#include "sluice/runtime/executor.h"

#include "sluice/base/error.h"
#include "sluice/runtime/out_of_memory.h"
#include "sluice/trace/around.h"

namespace sluice {

Executor::Executor(const Schedule& lowered, std::map<int, Stage*> stages, TensorChannel& pipeline,
                   const Boundary& boundary, bool evaluate)
    : schedule_(lowered),
      program_(lowered.programs[static_cast<std::size_t>(pipeline.rank())]),
      stages_(std::move(stages)),
      pipeline_(pipeline),
      boundary_(boundary),
      evaluate_(evaluate) {
  SLUICE_CHECK(pipeline.size() == lowered.num_devices(), "{} ranks for {} devices", pipeline.size(),
               lowered.num_devices());
}

ExecutedStep Executor::run(const DataSource& data, std::int64_t dim, const TensorKind& kind,
                           std::chrono::steady_clock::time_point origin) {
  start(data, dim, kind, origin);
  return finish();
}

double Executor::now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - origin_).count();
}

void Executor::start(const DataSource& data, std::int64_t dim, const TensorKind& kind,
                     std::chrono::steady_clock::time_point origin) {
  dim_ = dim;
  kind_ = kind;
  data_ = data;
  origin_ = origin;
  peak_buffer_bytes_ = 0;
  next_ = 0;
  step_ = {};
  num_marks_ = 0;
  started_ = now();
  mark();
}

void Executor::mark() {
  if (!kind_.on_gpu()) return;
  if (num_marks_ == marks_.size()) marks_.emplace_back();
  marks_[num_marks_++].record();
}

void Executor::settle_times() {
  if (!kind_.on_gpu()) return;
  cuda::synchronize();
  DeviceTimeline& timeline = step_.timeline;
  SLUICE_CHECK(num_marks_ == 1 + 2 * timeline.spans.size(), "{} marks of {} ops", num_marks_,
               timeline.spans.size());
  timeline.busy = 0;
  for (std::size_t n = 0; n < timeline.spans.size(); ++n) {
    Span& span = timeline.spans[n];
    span.start = started_ + marks_[1 + 2 * n].seconds_since(marks_[0]);
    span.end = started_ + marks_[2 + 2 * n].seconds_since(marks_[0]);
    timeline.memory[n].time = span.end;
    timeline.busy += span.end - span.start;
  }
}

void Executor::run_to(std::size_t limit) {
  for (; next_ < limit; ++next_) {
    const Op& op = program()[next_];
    try {
      if (is_compute(op.kind)) stages_.at(op.stage)->begin_gather(op.kind);
      // Waiting is not computing: the op's clock starts when its input is there.
      if (op.kind == OpKind::F || gives_input_gradient(op.kind)) {
        const Key key{op.kind != OpKind::F, op.stage, op.microbatch, op.slice};
        if (const auto found = arriving_.find(key); found != arriving_.end()) {
          found->second.message.wait();
          if (!scatters()) here_[key] = arriving_.extract(found).mapped().message.take();
        }
      }
      if (hooks_.before && (is_compute(op.kind) || op.kind == OpKind::ReduceGrad))
        hooks_.before(op);
      const double start = now();
      if (is_compute(op.kind)) mark();
      run_op(op);
      if (!is_compute(op.kind)) continue;
      mark();
      if (hooks_.after) hooks_.after(op);
      const double end = now();
      const std::int64_t held = stash_bytes();
      step_.timeline.spans.push_back({op, start, end});
      step_.timeline.memory.push_back({end, static_cast<double>(held)});
      step_.timeline.busy += end - start;
      step_.peak_stash_bytes = std::max(step_.peak_stash_bytes, held);
      reap_sends();
      if (hooks_.poll) hooks_.poll();
    } catch (const CommError& error) {
      throw CommError(located(error.what(), next_), error.guilty(), error.code());
    } catch (const UserError& error) {
      throw UserError(located(error.what(), next_), error.code());
    } catch (const c10::Error& error) {
      if (is_out_of_memory(error)) throw;  // the trainer knows what else is allocated
      throw InternalError(located(error.what_without_backtrace(), next_));
    } catch (const std::exception& error) {
      throw InternalError(located(error.what(), next_));
    }
  }
}

ExecutedStep Executor::conclude(bool drains) {
  run_to(program().size());
  step_.issued = now();
  if (drains) {
    for (TensorMessage& message : sent_)
      message.wait();
    sent_.clear();
  }
  for (const auto& [number, stage] : stages_)
    stage->reshard();  // the weights are about to change
  settle_times();
  step_.peak_buffer_bytes = peak_buffer_bytes_;
  step_.timeline.peak = static_cast<double>(step_.peak_stash_bytes);
  return std::move(step_);
}

ExecutedStep Executor::finish_part() { return conclude(false); }

void Executor::take_in(const Program& receives) {
  for (const Op& op : receives) {
    const Key key{op.kind == OpKind::RecvB, op.stage, op.microbatch, op.slice};
    if (taken_in_.contains(key)) continue;
    post_receive(op);
    if (const auto found = arriving_.find(key); found != arriving_.end())
      found->second.message.wait();
    taken_in_.insert(key);
  }
  for (TensorMessage& message : sent_)
    message.wait();
  sent_.clear();
}

ExecutedStep Executor::finish() {
  ExecutedStep step = conclude(true);
  SLUICE_CHECK(here_.empty() && leaving_.empty() && arriving_.empty(),
               "{} tensors were made and not used",
               here_.size() + leaving_.size() + arriving_.size());
  return step;
}

void Executor::drop() {
  for (auto& [key, arriving] : arriving_) {
    arriving.message.wait();
    arriving.message.take();
  }
  for (TensorMessage& message : sent_)
    message.wait();
  here_.clear();
  leaving_.clear();
  arriving_.clear();
  sent_.clear();
}

void Executor::run_op(const Op& op) {
  switch (op.kind) {
    case OpKind::F: {
      at::Tensor input;
      if (op.stage > 0) input = take_input(op, false);
      Stage& stage = *stages_.at(op.stage);
      const Microbatch& batch = data_(op.microbatch);
      hand_over(op, false,
                evaluate_ ? stage.evaluate(op.microbatch, op.slice, batch, input)
                          : stage.forward(op.microbatch, op.slice, batch, input));
      return;
    }
    case OpKind::I:
    case OpKind::B: {
      // Moved, so that it is freed as soon as the stage's last layer is done with it.
      at::Tensor gradient = take_input(op, true);
      Stage& stage = *stages_.at(op.stage);
      hand_over(op, true,
                op.kind == OpKind::B
                    ? stage.backward(op.microbatch, op.slice, std::move(gradient))
                    : stage.input_grad(op.microbatch, op.slice, std::move(gradient)));
      return;
    }
    case OpKind::W: stages_.at(op.stage)->weight_grad(op.microbatch, op.slice); return;
    case OpKind::SendF:
    case OpKind::SendB: send(op); return;
    case OpKind::RecvF:
    case OpKind::RecvB: post_receive(op); return;
    case OpKind::ReduceGrad:
      if (hooks_.reduce) hooks_.reduce(op.stage);
      return;
    case OpKind::Unshard: stages_.at(op.stage)->unshard(); return;
    case OpKind::Reshard: stages_.at(op.stage)->reshard(); return;
    case OpKind::Update: return;  // it is a stage's last op: the training loop does it
  }
}

at::Tensor Executor::take_input(const Op& op, bool gradient) {
  const Key key{gradient, op.stage, op.microbatch, op.slice};
  if (auto arrived = arriving_.extract(key)) {
    Arriving& arriving = arrived.mapped();
    return boundary_.tensor->all_gather(arriving.message.take(), arriving.tokens,
                                        TrafficClass::boundary_gather, "boundary");
  }
  auto made = here_.extract(key);
  SLUICE_CHECK(!made.empty(), "{} has no input", schedule_.text(op));
  return std::move(made.mapped());
}

void Executor::hand_over(const Op& op, bool gradient, at::Tensor tensor) {
  if (!tensor.defined()) return;  // the gradient of the first stage's input, or only a loss
  // After the last stage comes the loss, which gives a gradient back at once.
  const bool turns = !gradient && op.stage + 1 == schedule_.num_stages();
  const int to = turns ? op.stage : gradient ? op.stage - 1 : op.stage + 1;
  const Key key{gradient || turns, to, op.microbatch, op.slice};
  const bool local = schedule_.placement.device_of(op.pipe, to) == pipeline_.rank();
  (local ? here_ : leaving_)[key] = std::move(tensor);
  count_buffers();
}

void Executor::send(const Op& op) {
  const Key key{op.kind == OpKind::SendB, partner_stage(op), op.microbatch, op.slice};
  auto leaving = leaving_.extract(key);
  SLUICE_CHECK(!leaving.empty(), "{} has nothing to send", schedule_.text(op));
  at::Tensor tensor = std::move(leaving.mapped());
  if (tensor.size(0) == 0) return;  // the receiver knows
  if (scatters()) {
    const RowRange own = boundary_.tensor->own_rows(tensor.size(0));
    tensor = tensor.slice(0, own.begin, own.end);
  }
  if (boundary_.traffic) boundary_.traffic->add(TrafficClass::boundary, tensor.numel());
  sent_.push_back(pipeline_.send(schedule_.placement.device_of(op.pipe, key.stage), tensor,
                                 schedule_.text(op)));
}

void Executor::post_receive(const Op& op) {
  if (taken_in_.erase({op.kind == OpKind::RecvB, op.stage, op.microbatch, op.slice}) > 0) return;
  const auto c = static_cast<std::size_t>(op.slice);
  const Microbatch& batch = data_(op.microbatch);
  const SliceBounds bounds = batch.slice_bounds();
  const std::int64_t tokens = batch.tokens.size(0) * (bounds[c + 1] - bounds[c]);
  const Key key{op.kind == OpKind::RecvB, op.stage, op.microbatch, op.slice};
  if (tokens == 0) {
    here_[key] = at::empty({0, dim_}, kind_.values());
    return;
  }
  const bool share = scatters() || boundary_.divided;
  const std::int64_t rows = share ? boundary_.tensor->own_rows(tokens).count() : tokens;
  Arriving arriving{pipeline_.recv(schedule_.placement.device_of(op.pipe, partner_stage(op)),
                                   {rows, dim_}, kind_.values(), schedule_.text(op)),
                    tokens};
  arriving_.emplace(key, std::move(arriving));
  count_buffers();
}

void Executor::reap_sends() {
  std::erase_if(sent_, [&](TensorMessage& message) { return message.test(); });
}

// Called only where buffers may have grown.
void Executor::count_buffers() {
  std::int64_t bytes = 0;
  for (const auto* made : {&here_, &leaving_})
    for (const auto& [key, tensor] : *made)
      bytes += held_bytes(tensor);
  for (const auto& [key, arriving] : arriving_)
    bytes += arriving.message.bytes();
  for (const TensorMessage& message : sent_)
    bytes += message.bytes();
  peak_buffer_bytes_ = std::max(peak_buffer_bytes_, bytes);
}

std::int64_t Executor::stash_bytes() const {
  std::int64_t total = 0;
  for (const auto& [number, stage] : stages_)
    total += stage->stash_bytes();
  return total;
}

std::string Executor::located(std::string_view cause, std::size_t position) const {
  const Op& op = program()[position];
  return fmt::format(
      "{}; rank {} was at {} (op {})\nAround it, as if all ops took equally long:\n{}", cause,
      pipeline_.rank(), schedule_.text(op), position,
      grid_around(schedule_, pipeline_.rank(), position));
}

}  // namespace sluice
