#include "sluice/cuda/functions.h"

#include "sluice/cuda/calls.h"

namespace sluice::cuda {
namespace {

using kernels::Type;

const void* data(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }

at::Tensor statistics(const at::Tensor& x) {
  return at::empty({x.size(0), 1}, x.options().dtype(at::kFloat));
}

NormResult norm_of(const at::Tensor& x, const at::Tensor& addend, const at::Tensor& weight,
                   const at::Tensor& bias, double epsilon, at::Tensor* sum) {
  check_rows(x, "x");
  const std::int64_t dim = x.size(1);
  check_tensor(weight, "weight", x.scalar_type(), {dim});
  if (bias.defined()) check_tensor(bias, "bias", x.scalar_type(), {dim});
  kernels::NormCall call;
  if (sum) {
    check_tensor(addend, "addend", x.scalar_type(), x.sizes());
    *sum = at::empty_like(x);
    call.addend = data(addend);
    call.sum = sum->mutable_data_ptr();
  }
  NormResult result{at::empty_like(x), bias.defined() ? statistics(x) : at::Tensor(),
                    statistics(x)};
  call.type = type_of(x, "x");
  call.rows = as_blocks(x.size(0));
  call.dim = as_int(dim);
  call.x = data(x);
  call.weight = data(weight);
  call.bias = data(bias);
  call.y = result.y.mutable_data_ptr();
  if (bias.defined()) call.mean = result.mean.mutable_data_ptr<float>();
  call.rstd = result.rstd.mutable_data_ptr<float>();
  call.epsilon = static_cast<float>(epsilon);
  launch(kernels::norm, call);
  return result;
}

kernels::Gate gate_of(Activation kind) {
  switch (kind) {
    case Activation::gelu_tanh: return kernels::Gate::gelu_tanh;
    case Activation::gelu_erf: return kernels::Gate::gelu_erf;
    case Activation::swiglu: return kernels::Gate::swiglu;
  }
  throw InternalError("an activation that is none");
}

kernels::ActivationCall activation_call(Activation kind, const at::Tensor& u) {
  check_rows(u, "u");
  const int parts = kind == Activation::swiglu ? 2 : 1;
  SLUICE_CHECK(u.size(1) % parts == 0, "{} columns are no gate and as many more", u.size(1));
  kernels::ActivationCall call;
  call.type = type_of(u, "u");
  call.gate = gate_of(kind);
  call.rows = as_blocks(u.size(0));
  call.width = as_int(u.size(1) / parts);
  call.u = data(u);
  return call;
}

// Of heads of `head_dim` in `tokens` rows; the tables may be undefined.
kernels::Table table_of(const at::Tensor& cosine, const at::Tensor& sine, std::int64_t tokens,
                        std::int64_t head_dim) {
  SLUICE_CHECK(head_dim > 0 && head_dim <= 2048, "heads of {}", head_dim);
  if (!cosine.defined()) return {};
  SLUICE_CHECK(head_dim % 2 == 0, "heads of {} have no halves", head_dim);
  const std::int64_t rows = cosine.size(0);
  SLUICE_CHECK(tokens == 0 || (rows > 0 && tokens % rows == 0), "{} rows of angles for {} tokens",
               rows, tokens);
  check_tensor(cosine, "cosine", at::kFloat, {rows, head_dim / 2});
  check_tensor(sine, "sine", at::kFloat, {rows, head_dim / 2});
  return {cosine.const_data_ptr<float>(), sine.const_data_ptr<float>(), rows};
}

// x is (B, heads, n), or with head_dim of stride 1 after it.
kernels::Heads heads_of(const at::Tensor& x, const char* name, at::IntArrayRef sizes) {
  check_on_gpu(x, name);
  SLUICE_CHECK(x.sizes() == sizes, "{} is {}, not {}", name, fmt::join(x.sizes(), " x "),
               fmt::join(sizes, " x "));
  SLUICE_CHECK(x.dim() == 3 || x.stride(3) == 1 || x.size(3) <= 1,
               "the last dimension of {} has stride {}", name, x.stride(3));
  kernels::Heads heads;
  heads.type = type_of(x, name);
  heads.data = x.data_ptr();
  heads.heads = as_int(x.size(1));
  heads.batch_stride = x.stride(0);
  heads.head_stride = x.stride(1);
  heads.token_stride = x.stride(2);
  return heads;
}

// Of sequences that a launch counts in its second or third dimension.
void check_grid(std::int64_t batch) {
  SLUICE_CHECK(batch <= 65535, "{} sequences are too many", batch);
}

void check_heads(const at::Tensor& x, const char* name) {
  check_on_gpu(x, name);
  SLUICE_CHECK(x.dim() == 4, "{} has {} dimensions", name, x.dim());
}

}  // namespace

void draw_normal(at::Tensor& out, const NormalPart& part, std::uint64_t seed, double deviation) {
  check_tensor(out, "out", out.scalar_type(), out.sizes());
  kernels::DrawCall call;
  call.type = type_of(out, "out");
  call.count = out.numel();
  call.columns = part.columns;
  call.first_row = part.first_row;
  call.first_column = part.first_column;
  call.stride = part.stride;
  call.seed = seed;
  call.deviation = deviation;
  call.out = out.mutable_data_ptr();
  launch(kernels::draw_normal, call);
}

NormResult norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                double epsilon) {
  return norm_of(x, at::Tensor(), weight, bias, epsilon, nullptr);
}

NormResult add_norm(const at::Tensor& x, const at::Tensor& addend, const at::Tensor& weight,
                    const at::Tensor& bias, double epsilon, at::Tensor& sum) {
  return norm_of(x, addend, weight, bias, epsilon, &sum);
}

NormGradient norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                           const at::Tensor& mean, const at::Tensor& rstd,
                           const at::Tensor& addend) {
  check_rows(x, "x");
  const std::int64_t rows = as_blocks(x.size(0)), dim = x.size(1);
  check_tensor(dy, "dy", x.scalar_type(), x.sizes());
  check_tensor(weight, "weight", x.scalar_type(), {dim});
  check_tensor(rstd, "rstd", at::kFloat, {rows, 1});
  if (mean.defined()) check_tensor(mean, "mean", at::kFloat, {rows, 1});
  if (addend.defined()) check_tensor(addend, "addend", x.scalar_type(), x.sizes());
  const at::TensorOptions wide = x.options().dtype(at::kFloat);
  NormGradient out;
  out.dx = at::empty_like(x);
  if (rows == 0) {
    out.d_weight = at::zeros({dim}, wide);
    if (mean.defined()) out.d_bias = at::zeros({dim}, wide);
    return out;
  }
  out.d_weight = at::empty({dim}, wide);
  if (mean.defined()) out.d_bias = at::empty({dim}, wide);

  kernels::NormBackwardCall call;
  call.type = type_of(x, "x");
  call.rows = rows;
  call.dim = as_int(dim);
  call.dy = data(dy);
  call.x = data(x);
  call.weight = data(weight);
  call.addend = data(addend);
  call.mean = mean.defined() ? mean.const_data_ptr<float>() : nullptr;
  call.rstd = rstd.const_data_ptr<float>();
  call.dx = out.dx.mutable_data_ptr();
  call.d_weight = out.d_weight.mutable_data_ptr<float>();
  if (mean.defined()) call.d_bias = out.d_bias.mutable_data_ptr<float>();
  const at::Tensor partials = at::empty({kernels::norm_partials(call)}, wide);
  call.partials = partials.mutable_data_ptr<float>();
  launch(kernels::norm_backward, call);
  return out;
}

at::Tensor activation(Activation kind, const at::Tensor& u) {
  kernels::ActivationCall call = activation_call(kind, u);
  at::Tensor a = at::empty({u.size(0), call.width}, u.options());
  call.out = a.mutable_data_ptr();
  launch(kernels::activation, call);
  return a;
}

at::Tensor activation_backward(Activation kind, const at::Tensor& da, const at::Tensor& u) {
  kernels::ActivationCall call = activation_call(kind, u);
  check_tensor(da, "da", u.scalar_type(), {u.size(0), call.width});
  at::Tensor du = at::empty_like(u);
  call.da = data(da);
  call.out = du.mutable_data_ptr();
  launch(kernels::activation_backward, call);
  return du;
}

void rotate(at::Tensor& qkv, std::int64_t heads, std::int64_t head_dim, const at::Tensor& cosine,
            const at::Tensor& sine) {
  check_rows(qkv, "qkv");
  SLUICE_CHECK(heads * head_dim <= qkv.size(1), "{} heads of {} in {} columns", heads, head_dim,
               qkv.size(1));
  SLUICE_CHECK(cosine.defined(), "nothing to rotate by");
  kernels::RotateCall call;
  call.type = type_of(qkv, "qkv");
  call.tokens = as_blocks(qkv.size(0));
  call.columns = qkv.size(1);
  call.heads = as_int(heads);
  call.head_dim = as_int(head_dim);
  call.qkv = qkv.mutable_data_ptr();
  call.table = table_of(cosine, sine, call.tokens, head_dim);
  launch(kernels::rotate, call);
}

at::Tensor join_heads(const HeadGradients& gradients, const HeadGradients& more,
                      const at::Tensor& cosine, const at::Tensor& sine) {
  const auto& [dq, dk, dv] = gradients;
  check_heads(dq, "dq");
  check_heads(dk, "dk");
  const std::int64_t batch = dq.size(0), heads = dq.size(1), length = dq.size(2),
                     head_dim = dq.size(3), kv_heads = dk.size(1);
  kernels::JoinCall call;
  call.batch = batch;
  call.length = length;
  call.head_dim = as_int(head_dim);
  call.dq = heads_of(dq, "dq", dq.sizes());
  call.dk = heads_of(dk, "dk", {batch, kv_heads, length, head_dim});
  call.dv = heads_of(dv, "dv", dk.sizes());
  SLUICE_CHECK(
      call.dk.type == call.dv.type && (call.dk.type == call.dq.type || call.dk.type == Type::f32),
      "dq, dk and dv are {}, {} and {}", c10::toString(dq.scalar_type()),
      c10::toString(dk.scalar_type()), c10::toString(dv.scalar_type()));
  const auto added = [](const at::Tensor& x, const at::Tensor& to, const char* name, Type type) {
    kernels::Heads part;
    if (!x.defined()) return part;
    part = heads_of(x, name, to.sizes());
    SLUICE_CHECK(part.type == type, "{} is {}", name, c10::toString(x.scalar_type()));
    return part;
  };
  call.dq_more = added(more.dq, dq, "what is added to dq", call.dq.type);
  call.dk_more = added(more.dk, dk, "what is added to dk", Type::f32);
  call.dv_more = added(more.dv, dv, "what is added to dv", Type::f32);
  const std::int64_t tokens = as_blocks(batch * length);
  call.table = table_of(cosine, sine, tokens, head_dim);
  at::Tensor out = at::empty({tokens, (heads + 2 * kv_heads) * head_dim}, dq.options());
  call.out = out.mutable_data_ptr();
  launch(kernels::join_heads, call);
  return out;
}

void add_keys(const at::Tensor& dk, const at::Tensor& dv, const std::vector<std::int64_t>& lengths,
              std::vector<at::Tensor>& keys, std::vector<at::Tensor>& values) {
  check_heads(dk, "dk");
  const std::int64_t batch = dk.size(0), heads = dk.size(1), head_dim = dk.size(3);
  check_grid(batch);
  const bool first = !keys.at(0).defined();
  std::int64_t done = 0;
  for (std::size_t from = 0; from < lengths.size(); from += kernels::AddKeysCall::kMaxParts) {
    const std::size_t to =
        std::min(lengths.size(), from + std::size_t{kernels::AddKeysCall::kMaxParts});
    kernels::AddKeysCall call;
    call.batch = batch;
    call.head_dim = as_int(head_dim);
    call.first = first;
    call.parts = static_cast<int>(to - from);
    call.begin[0] = 0;
    for (std::size_t n = from; n < to; ++n) {
      const std::size_t place = n - from;
      call.begin[place + 1] = call.begin[place] + lengths[n];
      for (at::Tensor* total : {&keys.at(n), &values.at(n)}) {
        SLUICE_CHECK(total->defined() != first, "some of the slices' gradients are there");
        if (first)
          *total = at::empty({batch, lengths[n], heads, head_dim}, dk.options().dtype(at::kFloat))
                       .transpose(1, 2);
        check_tensor(total->transpose(1, 2), "a slice's gradient", at::kFloat,
                     {batch, lengths[n], heads, head_dim});
      }
      call.keys[place] = keys[n].data_ptr<float>();
      call.values[place] = values[n].data_ptr<float>();
    }
    const std::int64_t end = done + call.begin[call.parts];
    const at::Tensor own_dk = dk.slice(2, done, end);
    call.dk = heads_of(own_dk, "dk", own_dk.sizes());
    call.dv = heads_of(dv.slice(2, done, end), "dv", own_dk.sizes());
    SLUICE_CHECK(call.dk.type == call.dv.type, "dk is {} and dv {}",
                 c10::toString(dk.scalar_type()), c10::toString(dv.scalar_type()));
    as_blocks(batch * (end - done));
    launch(kernels::add_keys, call);
    done = end;
  }
  SLUICE_CHECK(done == dk.size(2), "{} tokens of slices for {} keys", done, dk.size(2));
}

at::Tensor join_tokens(std::span<const at::Tensor> parts) {
  const at::Tensor& like = parts.front();
  check_heads(like, "a part");
  kernels::JoinTokensCall call;
  for (const at::Tensor& part : parts)
    call.length += part.size(2);
  const std::int64_t batch = like.size(0), heads = like.size(1), head_dim = like.size(3);
  call.batch = batch;
  call.head_dim = as_int(head_dim);
  check_grid(batch);
  as_blocks(batch * call.length);
  const at::Tensor out = at::empty({batch, call.length, heads, head_dim}, like.options());
  call.out = out.mutable_data_ptr();
  while (!parts.empty()) {
    const auto some =
        parts.first(std::min(parts.size(), std::size_t{kernels::JoinTokensCall::kMaxParts}));
    call.parts = static_cast<int>(some.size());
    call.begin[0] = 0;
    for (std::size_t n = 0; n < some.size(); ++n) {
      const std::int64_t length = some[n].size(2);
      call.part[n] = heads_of(some[n], "a part", {batch, heads, length, head_dim});
      SLUICE_CHECK(some[n].scalar_type() == like.scalar_type(), "parts are {} and {}",
                   c10::toString(like.scalar_type()), c10::toString(some[n].scalar_type()));
      call.begin[n + 1] = call.begin[n] + length;
    }
    launch(kernels::join_tokens, call);
    call.first += call.begin[call.parts];
    parts = parts.subspan(some.size());
  }
  return out.transpose(1, 2);
}

void merge_attention(at::Tensor& a_out, at::Tensor& a_lse, const at::Tensor& b_out,
                     const at::Tensor& b_lse) {
  check_heads(a_out, "a_out");
  const at::IntArrayRef sizes = a_out.sizes(), rows = sizes.slice(0, 3);
  SLUICE_CHECK(sizes[3] > 0 && sizes[3] <= 2048, "heads of {}", sizes[3]);
  kernels::MergeCall call;
  call.batch = sizes[0];
  call.length = sizes[2];
  call.head_dim = as_int(sizes[3]);
  as_blocks(sizes[0] * sizes[2]);
  call.a = heads_of(a_out, "a_out", sizes);
  call.b = heads_of(b_out, "b_out", sizes);
  call.a_lse = heads_of(a_lse, "a_lse", rows);
  call.b_lse = heads_of(b_lse, "b_lse", rows);
  SLUICE_CHECK(call.a.type == call.b.type || call.a.type == Type::f32, "outputs are {} and {}",
               c10::toString(a_out.scalar_type()), c10::toString(b_out.scalar_type()));
  SLUICE_CHECK(call.a_lse.type == Type::f32 && call.b_lse.type == Type::f32,
               "statistics are {} and {}", c10::toString(a_lse.scalar_type()),
               c10::toString(b_lse.scalar_type()));
  launch(kernels::merge_attention, call);
}

void cross_entropy(at::Tensor& logits, const at::Tensor& targets, double scale, bool gradient,
                   at::Tensor& loss) {
  check_rows(logits, "logits");
  check_tensor(targets, "targets", at::kLong, {logits.size(0)});
  check_tensor(loss, "loss", at::kDouble, {1});
  kernels::CrossEntropyCall call;
  call.type = type_of(logits, "logits");
  call.rows = as_blocks(logits.size(0));
  call.words = as_int(logits.size(1));
  call.logits = logits.mutable_data_ptr();
  call.targets = targets.const_data_ptr<std::int64_t>();
  call.scale = static_cast<float>(scale);
  call.gradient = gradient;
  call.loss = loss.mutable_data_ptr<double>();
  launch(kernels::cross_entropy, call);
}

void add_rows(at::Tensor& gradient, const at::Tensor& rows, const at::Tensor& d_rows) {
  check_rows(gradient, "gradient");
  check_rows(d_rows, "d_rows");
  check_tensor(gradient, "gradient", at::kFloat, {gradient.size(0), d_rows.size(1)});
  check_tensor(rows, "rows", at::kLong, {d_rows.size(0)});
  kernels::AddRowsCall call;
  call.type = type_of(d_rows, "d_rows");
  call.count = as_blocks(d_rows.size(0));
  call.words = gradient.size(0);
  call.dim = as_int(d_rows.size(1));
  call.gradient = gradient.mutable_data_ptr<float>();
  call.rows = rows.const_data_ptr<std::int64_t>();
  call.d_rows = data(d_rows);
  launch(kernels::add_rows, call);
}

}  // namespace sluice::cuda
