"""What the study trains: a preset is a list of runs, and each run a method with its flags.

A run is a dict: id, group, method, model, devices, optimizer, lr (a number, or the name of the method whose best rate
it takes), seed, steps, clip. `flags` turns it into flags of `sluice train`.
"""

# By method: the schedule, its further keys, and its microbatches per device and update; 0: one microbatch in all.
METHODS = {
    "sync": ("1f1b", {}, 4),
    "amdp": ("amdp", {"asynchronous.order": "A"}, 4),
    "amdp, stash": ("amdp", {"asynchronous.order": "A", "asynchronous.weights": "stash"}, 4),
    "amdp, M = d": ("amdp", {"asynchronous.order": "A"}, 1),
    "amdp, early update": ("amdp", {"asynchronous.order": "A", "asynchronous.update_slot": 3}, 4),
    "amdp, fused": ("amdp", {"asynchronous.order": "A", "asynchronous.backward": "fused", "asynchronous.border": 2}, 4),
    "amdp, first in first out": ("amdp", {"asynchronous.order": "frozen"}, 4),
    "2bw": ("pipedream-2bw", {}, 4),
    "async-1f1b": ("async-1f1b", {}, 4),
    "xpipe": ("xpipe", {}, 4),
    "pp2xdp": ("async-1f1b", {}, 4),
    "control": ("pipedream", {"asynchronous.weights": "stash"}, 0),
}
OTHERS = ["amdp, stash", "2bw", "async-1f1b", "xpipe", "pp2xdp", "amdp, M = d"]
TRAINED_ABLATIONS = ["amdp, early update", "amdp, fused", "amdp, first in first out"]

OPTIMIZERS = {
    "adamw": {"optimizer.name": "adamw"},
    "muon": {"optimizer.name": "muon"},
    "nadam": {"optimizer.name": "nadam", "optimizer.beta1": 0.99},
}

# 2048 tokens per update. A model's flags, and the devices that a run has unless it says otherwise.
MODELS = {
    "gpt": {"model.layers": 8, "model.dim": 72, "model.heads": 4, "training.sequence_length": 64,
            "training.global_batch_size": 32},
    "bert": {"model.shape": "bert", "model.layers": 8, "model.dim": 72, "model.heads": 4, "model.vocab_size": 258,
             "training.sequence_length": 64, "training.global_batch_size": 32},
    "tiny": {"model.layers": 4, "model.dim": 16, "model.heads": 2, "training.sequence_length": 16,
             "training.global_batch_size": 16},
}


def run(group, method, *, model="gpt", devices=8, optimizer="adamw", lr="sync", seed=0, steps=1500, clip=1.0):
    name = [group, method.replace(", ", "-").replace(" ", "-").replace("=", "is"), optimizer, model, f"d{devices}",
            f"s{seed}"]
    if not isinstance(lr, str):
        name.append(f"lr{lr:g}")
    return {"id": "_".join(name), "group": group, "method": method, "model": model, "devices": devices,
            "optimizer": optimizer, "lr": lr, "seed": seed, "steps": steps, "clip": clip}


def headline():
    runs = [run("rates", method, lr=lr, steps=1000) for method in ("sync", "amdp") for lr in (1e-3, 2e-3, 4e-3)]
    for seed in range(5):
        runs += [run("headline", method, lr="amdp" if method == "amdp" else "sync", seed=seed, steps=5000)
                 for method in ("sync", "amdp", "control")]
    for seed in range(2):
        runs += [run("methods", method, seed=seed) for method in ["sync", "amdp"] + OTHERS + TRAINED_ABLATIONS]
        runs += [run("optimizers", method, optimizer=optimizer, seed=seed)
                 for optimizer in ("muon", "nadam") for method in ("sync", "amdp")]
        runs += [run("bert", method, model="bert", seed=seed) for method in ("sync", "amdp", "control")]
        runs += [run("d4", method, devices=4, seed=seed) for method in ("sync", "amdp", "control")]
    runs += [run("unclipped", method, clip=0.0) for method in ("sync", "amdp", "control")]
    return runs


def full():
    """Every method at every rate, five seeds: about 700 hours of a core."""
    methods = [m for m in METHODS if m not in TRAINED_ABLATIONS]
    runs = [run("rates", method, devices=d, lr=lr, seed=seed, steps=5000)
            for d in (4, 8) for method in methods for lr in (1e-3, 2e-3, 4e-3, 8e-3) for seed in range(5)]
    return runs + [r for r in headline() if r["group"] != "rates"]


def smoke():
    """Seconds: shows that all parts work, and nothing about convergence."""
    small = {"model": "tiny", "devices": 4}
    runs = [run("rates", method, lr=lr, steps=8, **small) for method in ("sync", "amdp") for lr in (2e-3, 8e-3)]
    for seed in range(2):
        runs += [run("headline", method, lr="amdp" if method == "amdp" else "sync", seed=seed, steps=24, **small)
                 for method in ("sync", "amdp", "control")]
    runs += [run("methods", method, steps=12, **small) for method in ["sync", "amdp"] + OTHERS]
    runs += [run("optimizers", method, optimizer=optimizer, steps=12, **small)
             for optimizer in ("muon", "nadam") for method in ("sync", "amdp")]
    return runs


PRESETS = {"headline": headline, "full": full, "smoke": smoke}


def flags(r, lr, data):
    """The keys of `sluice train` for a run at a learning rate."""
    schedule, more, per_device = METHODS[r["method"]]
    devices, batch = r["devices"], MODELS[r["model"]]["training.global_batch_size"]
    keys = {
        **MODELS[r["model"]], **OPTIMIZERS[r["optimizer"]],
        "optimizer.lr": lr, "training.steps": r["steps"], "training.max_norm": r["clip"], "debug.seed": r["seed"],
        "lr_scheduler.warmup_steps": max(1, r["steps"] // 20),
        "data.path": data, "data.format": "text", "data.validation_fraction": 0.1,
        "parallelism.pipeline_parallel_schedule": schedule, "parallelism.pipeline_parallel_degree": devices,
        "parallelism.num_microbatches": min(per_device * devices, batch) or 1, **more,
        "validation.interval": max(1, r["steps"] // 20), "validation.batches": 25,
        "checkpoint.interval": max(4, r["steps"] // 10), "checkpoint.keep_latest_k": 2, "metrics.progress": "false",
        "comm.backend": "threads",
    }
    if r["method"] == "pp2xdp":
        keys.update({"parallelism.pipeline_parallel_degree": 2,
                     "parallelism.data_parallel_replicate_degree": devices // 2,
                     "parallelism.num_microbatches": min(8, batch * 2 // devices)})
    if r["method"] == "sync":  # the same bits on one device, and faster there
        keys["parallelism.pipeline_parallel_degree"] = 1
    return [f"--{key}={value}" for key, value in sorted(keys.items())]
