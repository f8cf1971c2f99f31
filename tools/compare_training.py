"""Training in Sluice (fp32) beside the same training in torch and transformers (fp64).

A tiny Llama, GPT-2 and BERT take 20 AdamW steps with the same first weights, samples, masks, learning rates,
weight decay and clipping. What may differ is the rounding of fp32: the loss of each step by LOSS and the norm of
its gradient by NORM (relative), and the last weights by WEIGHTS (absolute; one step moves a weight by up to LR).
"""

import json
import math
import types

import torch
import transformers
from safetensors.torch import load_file

LOSS, NORM, WEIGHTS = 2e-7, 2e-6, 1e-5

SEED, STEPS, BATCH, LENGTH = 5, 20, 8, 32
LR, WARMUP, MIN_RATIO, BETAS, EPS, DECAY, MAX_NORM = 3e-3, 4, 0.1, (0.9, 0.95), 1e-8, 0.1, 0.5

# ---- the samples of a run, as src/data/permutation.cpp and src/data/masking.cpp make them

BITS = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(value):
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & BITS
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & BITS
    return value ^ (value >> 31)


class Random:
    def __init__(self, seed, stream):
        self.state = mix(mix(seed + GOLDEN & BITS) ^ (stream * GOLDEN + 1 & BITS))

    def next(self):
        self.state = self.state + GOLDEN & BITS
        return mix(self.state)

    def below(self, bound):
        value = self.next()
        while value < (1 << 64) % bound:
            value = self.next()
        return value % bound


def place_of(index, size, epoch):
    """Where the sample at `index` of an epoch lies in the data: a Feistel network."""
    half = 3
    while 1 << 2 * half < size:
        half += 1
    keys = Random(SEED, epoch)
    keys = [keys.next() for _ in range(8)]
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for key in keys:
            left, right = right, left ^ (mix(right + key & BITS) & mask)
        index = left << half | right
        if index < size:
            return index


def masked(tokens, index, mask_token, never):
    """Hides 15% of the tokens; the targets are the hidden ones, -100 elsewhere."""
    places = [n for n, token in enumerate(tokens) if token != never]
    random = Random(mix(SEED ^ 0x6D61736B), index)
    targets = [-100] * len(tokens)
    for n in range(max(1, math.floor(0.15 * len(places) + 0.5))):
        other = n + random.below(len(places) - n)
        places[n], places[other] = places[other], places[n]
        place = places[n]
        targets[place] = tokens[place]
        fate = random.below(10)
        if fate < 8:
            tokens[place] = mask_token
        elif fate == 8:
            tokens[place] = random.below(never)
    return tokens, targets


def batches(data, mask_token=None):
    num_samples = (len(data) - 1) // LENGTH
    for step in range(STEPS):
        rows = []
        for index in range(step * BATCH, (step + 1) * BATCH):
            first = place_of(index % num_samples, num_samples, index // num_samples) * LENGTH
            tokens, targets = data[first:first + LENGTH], data[first + 1:first + LENGTH + 1]
            rows.append((tokens, targets) if mask_token is None else masked(tokens, index, mask_token, 256))
        yield [torch.tensor(part) for part in zip(*rows)]


# ---- torch


def in_own_precision(model):
    """fp64 throughout: transformers' RMS norm computes in fp32, whatever the model is."""

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    model = model.double().train()
    for module in model.modules():
        if type(module).__name__ == "LlamaRMSNorm":
            module.forward = types.MethodType(forward, module)
    return model


def learning_rate(step):
    if step <= WARMUP:
        return LR * step / WARMUP
    done = (step - WARMUP) / (STEPS - WARMUP)
    return LR * (MIN_RATIO + (1 - MIN_RATIO) * 0.5 * (1 + math.cos(math.pi * done)))


def train(model, samples):
    """The loss and the norm of the gradient of every step; the model keeps its last weights."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(
        [{"params": [weight for weight in trained if weight.dim() > 1], "weight_decay": DECAY},
         {"params": [weight for weight in trained if weight.dim() == 1], "weight_decay": 0.0}],
        betas=BETAS, eps=EPS)
    history = []
    for step, (tokens, targets) in enumerate(samples, 1):
        logits = model(tokens).logits
        assert logits.dtype == torch.float64
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = torch.stack([weight.grad.norm() for weight in trained]).norm().item()
        for weight in trained:
            weight.grad.mul_(min(1.0, MAX_NORM / norm))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        history.append((loss.item(), norm))
    return history


# ---- Sluice

FLAGS = {
    "training.steps": STEPS, "training.sequence_length": LENGTH, "training.global_batch_size": BATCH,
    "training.max_norm": MAX_NORM, "optimizer.lr": LR, "optimizer.beta1": BETAS[0], "optimizer.beta2": BETAS[1],
    "optimizer.eps": EPS, "optimizer.weight_decay": DECAY, "lr_scheduler.warmup_steps": WARMUP,
    "lr_scheduler.min_lr_ratio": MIN_RATIO, "debug.seed": SEED, "data.format": "text",
    "checkpoint.interval": 0}


def run(comparison, here, **changes):
    """Trains by `here`/run.toml and what is given; returns the loss and the norm of the gradient of every step."""
    flags = FLAGS | {"data.path": here / "text", "checkpoint.folder": here / "run", "metrics.folder": here / "metrics"}
    flags |= {key.replace("__", "."): value for key, value in changes.items()}
    comparison.sluice("train", here / "run.toml", *[f"--{key}={value}" for key, value in flags.items()])
    lines = (flags["metrics.folder"] / "metrics.jsonl").read_text().splitlines()
    return [(line["loss"], line["grad_norm"]) for line in map(json.loads, lines)]


def report(comparison, name, ours, theirs, weights, expected):
    name = f"{name}, {STEPS} steps"
    assert len(ours) == len(theirs) == STEPS
    for column, (what, limit) in enumerate((("loss", LOSS), ("norm of the gradient", NORM))):
        difference = max(abs(a[column] / b[column] - 1) for a, b in zip(ours, theirs))
        comparison.report(name, f"{what}, each step", difference, limit)
    comparison.report(name, "names of weights", len(weights.keys() ^ expected.keys()), 0)
    comparison.report(name, "weights after the last step",
                      max((weights[key].double() - expected[key]).abs().max().item() for key in expected), WEIGHTS)


def decoder(comparison, name, model, data):
    here = comparison.folder / f"train-{name}"
    model.save_pretrained(here / "hf")
    (here / "text").write_bytes(bytes(data[:-1]))
    comparison.sluice("import", here / "hf", "--out", here / "first")
    held = json.loads(comparison.sluice("inspect", here / "first", "--format", "json"))
    (here / "run.toml").write_text(held["config"])
    ours = run(comparison, here, checkpoint__load=here / "first")
    comparison.sluice("export", here / "run", "--out", here / "exported")
    theirs = train(in_own_precision(model), batches(data))
    weights = load_file(here / "exported" / "model.safetensors")
    report(comparison, name, ours, theirs, weights,
           {key: value for key, value in model.state_dict().items() if key in weights or key != "lm_head.weight"})


BERT_MODULES = {
    "embedding": "bert.embeddings.word_embeddings", "positions": "bert.embeddings.position_embeddings",
    "embedding_norm": "bert.embeddings.LayerNorm", "head.dense": "cls.predictions.transform.dense",
    "norm": "cls.predictions.transform.LayerNorm", "head": "cls.predictions.decoder"}
BERT_LAYER_MODULES = {
    "attention.q": "attention.self.query", "attention.k": "attention.self.key", "attention.v": "attention.self.value",
    "attention.out": "attention.output.dense", "attention_norm": "attention.output.LayerNorm",
    "mlp.up": "intermediate.dense", "mlp.down": "output.dense", "mlp_norm": "output.LayerNorm"}


def bert_weights(folder):
    """The weights of a checkpoint of one rank, by transformers' names."""
    shard = next(folder.glob("step-*/rank-00000.safetensors"))
    out = {}
    for name, value in load_file(shard).items():
        if "/" in name:
            continue  # a state of the optimizer
        module, kind = name.rsplit(".", 1)
        if module.startswith("layers."):
            _, layer, module = module.split(".", 2)
            out[f"bert.encoder.layer.{layer}.{BERT_LAYER_MODULES[module]}.{kind}"] = value
        else:
            out[f"{BERT_MODULES[module]}.{kind}"] = value
    return out


def bert(comparison, data):
    here = comparison.folder / "train-bert"
    here.mkdir()
    (here / "text").write_bytes(bytes(data[:-1]))
    (here / "run.toml").write_text("")
    shape = dict(model__shape="bert", model__layers=2, model__dim=48, model__heads=4, model__ffn_dim=96,
                 model__vocab_size=258, model__tied_embeddings="true")
    # First weights depend on the seed alone, and this step changes none.
    run(comparison, here, **shape, training__steps=1, optimizer__lr=0, optimizer__weight_decay=0,
        lr_scheduler__warmup_steps=0, checkpoint__folder=here / "first", metrics__folder=here / "first-metrics")
    ours = run(comparison, here, **shape)
    model = transformers.BertForMaskedLM(transformers.BertConfig(
        vocab_size=258, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=LENGTH, hidden_dropout_prob=0, attention_probs_dropout_prob=0))
    missing = model.load_state_dict(bert_weights(here / "first"), strict=False)
    assert not missing.unexpected_keys
    # Sluice's BERT has no token types.
    types_table = model.bert.embeddings.token_type_embeddings.weight
    types_table.requires_grad_(False).zero_()
    model = in_own_precision(model)
    theirs = train(model, batches(data, mask_token=257))
    weights = bert_weights(here / "run")
    state = model.state_dict()
    for key in missing.missing_keys:
        assert key in ("bert.embeddings.token_type_embeddings.weight", "bert.embeddings.position_ids",
                       "cls.predictions.bias", "cls.predictions.decoder.weight"), key
    report(comparison, "bert", ours, theirs, weights, {key: state[key] for key in weights})


def compare(comparison):
    generator = torch.Generator().manual_seed(11)
    # Text that can be learned: a byte depends on the one before it.
    data = [97]
    for choice in torch.randint(0, 3, (3300,), generator=generator).tolist():
        data.append(97 + ((data[-1] - 97) * 5 + choice) % 26)
    data.append(256)  # the end of the document
    torch.manual_seed(2)
    decoder(comparison, "llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=257, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=LENGTH, bos_token_id=None, eos_token_id=None)), data)
    decoder(comparison, "gpt2", transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=257, n_positions=LENGTH, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, bos_token_id=None, eos_token_id=None)), data)
    bert(comparison, data)
