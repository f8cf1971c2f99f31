"""report.py SLUICE BATCHES: the report of run.sh. Every number comes from `SLUICE batch ... --format json`."""

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

DISTRIBUTIONS = ["github-like", "commoncrawl-like", "wikipedia"]
K = 1024

# FlexSP, ASPLOS 2025: seconds per iteration of DeepSpeed, Megatron, BatchAda and FlexSP, and FlexSP's speed-up over the
# first two; by model, context in K and distribution, in the order above. Seconds are read off a figure.
PUBLISHED = {
    ("7b", 192): [
        (28.7, 28.2, 26.6, 19.8, 1.45, 1.43),
        (24.2, 26.8, 22.1, 16.0, 1.50, 1.66),
        (8.1, 9.5, 6.0, 4.8, 1.72, 1.98),
    ],
    ("7b", 384): [
        (32.3, 37.4, 31.4, 25.5, 1.26, 1.47),
        (26.9, 33.5, 25.7, 19.0, 1.42, 1.77),
        (8.2, 9.8, 6.1, 5.6, 1.46, 1.77),
    ],
    ("13b", 192): [
        (47.8, 47.0, 44.4, 34.4, 1.40, 1.38),
        (40.0, 45.9, 37.4, 29.6, 1.35, 1.55),
        (13.9, 15.8, 10.6, 8.7, 1.59, 1.79),
    ],
    ("13b", 384): [
        (54.1, 68.3, 51.1, 41.8, 1.29, 1.63),
        (53.0, 66.0, 50.0, 38.8, 1.37, 1.70),
        (14.9, 18.3, 12.3, 10.5, 1.43, 1.77),
    ],
    ("30b", 192): [
        (120, 120, 115, 83, 1.44, 1.44),
        (110, 112, 100, 71, 1.54, 1.58),
        (29, 35, 24, 17.6, 1.64, 1.95),
    ],
    ("30b", 384): [
        (133, 153, 130, 110, 1.22, 1.40),
        (116, 140, 111, 88, 1.33, 1.60),
        (32, 40, 28, 22, 1.53, 1.85),
    ],
}

# The published constants of 7b: seconds, bytes and bytes per second.
COSTS_7B = {
    "a1": 5.128e-9,
    "a2": 1.839576e-4,
    "b1": 0.6293563,
    "stash_bytes_per_token": 4.480441895 * 2**20,
    "state_bytes": 0,  # the capacity is given in tokens
    "all_to_all_bytes_per_token": 8 * 2 * 32 * 4096,
    "bytes_per_s": {str(d): rate * 1000 * 2**20
                    for d, rate in [(2, 119.54), (4, 104.07), (8, 96.5), (16, 10.33), (32, 5.94), (64, 4.87)]},
    "heads": 64,
}


class Planner:
    """Runs the program, several at once, and every set of flags once."""

    def __init__(self, program):
        self.program = program
        self.pool = ThreadPoolExecutor(os.cpu_count())
        self.asked = {}

    def ask(self, **flags):
        words = tuple(word for name, value in sorted(flags.items())
                      for word in ("--" + name.replace("_", "-"), *([] if value is True else [str(value)])))
        if words not in self.asked:
            self.asked[words] = self.pool.submit(self.run, words)
        return self.asked[words]

    def run(self, words):
        done = subprocess.run([self.program, "batch", *words, "--format", "json"], capture_output=True, text=True)
        if done.returncode == 0:
            return json.loads(done.stdout)
        if "tp-cp" in words:
            return None  # no layout holds the longest sequence
        sys.exit(f"{self.program} batch {' '.join(words)}: {done.stderr.strip()}")


def case(distribution, context, seed, model="7b", devices=64, **more):
    flags = {"lengths": distribution, "max_length": context * K, "seed": seed, "model": model, "devices": devices}
    return {**flags, **more}


def seconds(plans):
    """In the mean. REQUIRES: futures or answers."""
    plans = [plan if isinstance(plan, dict) else plan.result() for plan in plans]
    return sum(plan["predicted_ms"] for plan in plans) / len(plans) / 1000


def fixed_seconds(flex, degree, fill=0.9):
    """Of groups of one degree, as the same batches' reports have it; None where a sequence does not fit."""
    found = [baseline["predicted_ms"] for plan in flex for baseline in plan.result()["baselines"]["fixed"]
             if baseline["degree"] == degree and baseline["fill"] == fill]
    return None if None in found or not found else sum(found) / len(found) / 1000


def best_fixed(flex, context):
    """The fastest degree for all the batches among those that hold a sequence as long as the context."""
    first = flex[0].result()
    times = {baseline["degree"]: fixed_seconds(flex, baseline["degree"]) for baseline in first["baselines"]["fixed"]
             if baseline["degree"] * first["capacity_tokens"] >= context * K}
    times = {degree: time for degree, time in times.items() if time is not None}
    return min(times.items(), key=lambda item: item[1]) if times else (None, None)


def adapted_seconds(flex):
    return sum(plan.result()["baselines"]["batch_ada"]["predicted_ms"] for plan in flex) / len(flex) / 1000


def over(slow, fast):
    return "-" if slow is None else f"{slow / fast:.2f}"


def s(value):
    return "-" if value is None else f"{value:.2f}"


def title(text, explanation=""):
    print(f"\n{text}\n{'=' * len(text)}")
    if explanation:
        print(explanation)
    print()


def table(header, rows):
    cells = [header, *rows]
    widths = [max(len(str(row[column])) for row in cells) for column in range(len(header))]
    for row in cells:
        print("  ".join(str(cell).ljust(width) if column == 0 else str(cell).rjust(width)
                        for column, (cell, width) in enumerate(zip(row, widths))))


# Each section asks for its plans, yields, and prints when all sections have asked.


def speedups(ask, seeds):
    rows = []
    for (model, context), published in PUBLISHED.items():
        for distribution, paper in zip(DISTRIBUTIONS, published):
            flags = [case(distribution, context, seed, model) for seed in seeds]
            rows.append((model, context, distribution, paper, [ask(**flag) for flag in flags],
                         [ask(**flag, strategy="tp-cp") for flag in flags]))
    yield
    title("Seconds per batch and speed-up of FlexSP",
          "On 64 devices. (...): published, measured; its DeepSpeed is SP=64, its Megatron is tp-cp.")
    out = []
    for model, context, distribution, paper, flex, tp_cp in rows:
        own = seconds(flex)
        both = [(plan.result(), other.result()) for plan, other in zip(flex, tp_cp) if other.result()]
        versus = over(seconds([o for _, o in both]), seconds([f for f, _ in both])) if both else "-"
        at_once = fixed_seconds(flex, 64, 1.0)
        ada = adapted_seconds(flex)
        gap = 100 * sum(plan.result()["gap"] for plan in flex) / len(flex)
        plan_ms = sum(plan.result()["plan_ms"] for plan in flex) / len(flex)
        sp64 = fixed_seconds(flex, 64)
        out.append((f"{model} {context}K {distribution}", s(sp64), f"({paper[0]})", s(ada), f"({paper[2]})",
                    s(own), f"({paper[3]})", over(sp64, own), f"({paper[4]:.2f})", over(at_once, own),
                    over(ada, own), f"({paper[2] / paper[3]:.2f})", versus, f"({paper[5]:.2f})",
                    f"{gap:.1f}", f"{plan_ms:.0f}"))
    table(("", "SP=64", "", "BatchAda", "", "FlexSP", "", "x SP=64", "", "x full", "x BatchAda", "", "x tp-cp", "",
           "gap %", "plan ms"), out)


def ablations(ask, seeds):
    variants = [("as it is", {}), ("not sorted", {"no_sort": True}), ("buckets of 2048", {"bucketing": "fixed:2048"}),
                ("no buckets", {"bucketing": "none"})]
    plans = {(name, distribution): [ask(**case(distribution, 192, seed), **more) for seed in seeds]
             for name, more in variants for distribution in DISTRIBUTIONS}
    yield
    title("Without one of its parts", "Seconds per batch, 7b, 192K. Published: each of these is slower.")
    out = []
    for name, _ in variants:
        times = [(seconds(plans[name, d]), seconds(plans["as it is", d])) for d in DISTRIBUTIONS]
        milliseconds = sum(p.result()["plan_ms"] for d in DISTRIBUTIONS for p in plans[name, d]) / len(seeds) / 3
        out.append((name, *(f"{t:.2f} ({100 * (t / full - 1):+.1f} %)" for t, full in times), f"{milliseconds:.0f}"))
    table(("", *DISTRIBUTIONS, "plan ms"), out)


def priced(plan, wrong, right):
    """The seconds of a plan made with other costs. A group's tokens and its time there give its sum of squares."""
    total = 0
    for microbatch in plan["microbatches"]:
        slowest = 0
        for group in microbatch["groups"]:
            degree, tokens = group["degree"], group["tokens"]

            def rest(costs):  # all but the squares
                exchange = costs["all_to_all_bytes_per_token"] / costs["bytes_per_s"][str(degree)] if degree > 1 else 0
                return (costs["a2"] + exchange) * tokens / degree + costs["b1"]

            squares = (group["predicted_ms"] / 1000 - rest(wrong)) * degree / wrong["a1"]
            slowest = max(slowest, right["a1"] * squares / degree + rest(right))
        total += slowest
    return total


def estimator(ask, seeds, folder):
    errors = [("as they are", 1, 1), ("compute +6 %, all-to-all -6 %", 1.06, 0.94),
              ("compute -6 %, all-to-all +6 %", 0.94, 1.06)]
    plans = {}
    for number, (name, compute, exchange) in enumerate(errors):
        costs = dict(COSTS_7B, **{key: COSTS_7B[key] * compute for key in ("a1", "a2", "b1")})
        costs["bytes_per_s"] = {degree: rate / exchange for degree, rate in COSTS_7B["bytes_per_s"].items()}
        path = os.path.join(folder, f"costs-{number}.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "flexsp": costs}, file)
        for distribution in DISTRIBUTIONS:
            flags = [case(distribution, 192, seed, capacity_tokens=6449, costs=path) for seed in seeds]
            for flag in flags:
                del flag["model"]
            plans[name, distribution] = (costs, [ask(**flag) for flag in flags])
    yield
    title("Plans by wrong costs", "Planned with these, priced with the true ones: seconds per batch, 7b, 192K.\n"
          "Published: the estimates are within 6 % of what is measured.")
    times = {key: sum(priced(plan.result(), costs, COSTS_7B) for plan in found) / len(found)
             for key, (costs, found) in plans.items()}
    table(("", *DISTRIBUTIONS),
          [(name, *(f"{times[name, d]:.2f} ({100 * (times[name, d] / times['as they are', d] - 1):+.1f} %)"
                    for d in DISTRIBUTIONS)) for name, _, _ in errors])


def exchanges(ask, seeds):
    strategies = [("fixed:64", "39.4"), ("batch-ada", "about 31"), ("flex", "10.3 to 13.7")]
    flags = [case("commoncrawl-like", 384, seed) for seed in seeds]
    plans = {name: [ask(**flag, strategy=name) for flag in flags] for name, _ in strategies}
    yield
    title("All-to-all", "7b, commoncrawl-like, 384K.")
    own = {name: sum(p.result()["all_to_all_share"] * p.result()["predicted_ms"] for p in found) / len(found) / 1000
           for name, found in plans.items()}
    table(("", "s per batch", "of them all-to-all", "%", "published %"),
          [(name, s(seconds(plans[name])), s(own[name]), f"{100 * own[name] / seconds(plans[name]):.1f}", published)
           for name, published in strategies])
    most = max(a.result()["all_to_all_share"] * a.result()["predicted_ms"] /
               (f.result()["all_to_all_share"] * f.result()["predicted_ms"] or 1)
               for a, f in zip(plans["fixed:64"], plans["flex"]))
    print(f"\nOf SP=64's all-to-all time to FlexSP's, at most: {most:.2f} (published: up to 5.86)")


def contexts(ask, seeds):
    plans = {context: [ask(**case("commoncrawl-like", context, seed)) for seed in seeds]
             for context in (64, 128, 192, 256, 384)}
    yield
    title("Contexts", "7b, commoncrawl-like, 64 devices. Published: 1.42 to 1.51 times DeepSpeed from 64K to 384K.\n"
          "Best fixed: the fastest single degree that holds a sequence as long as the context.")
    out = []
    for context, flex in plans.items():
        own = seconds(flex)
        degree, best = best_fixed(flex, context)
        sp64, ada = fixed_seconds(flex, 64), adapted_seconds(flex)
        out.append((f"{context}K", s(own), s(sp64), f"SP={degree} {s(best)}", s(ada), over(sp64, own), over(best, own),
                    over(ada, own)))
    table(("", "FlexSP", "SP=64", "best fixed", "BatchAda", "x SP=64", "x best fixed", "x BatchAda"), out)


def scaling(ask, seeds):
    sizes = (16, 32, 64)
    flags = {n: [case("commoncrawl-like", 128, seed, devices=n) for seed in seeds] for n in sizes}
    plans = {n: [ask(**flag) for flag in flags[n]] for n in sizes}
    tp_cp = {n: [ask(**flag, strategy="tp-cp") for flag in flags[n]] for n in sizes}
    yield
    title("Devices", "7b, commoncrawl-like, 128K: seconds per batch, and how much faster twice the devices are.")
    # Of the same batches everywhere: those that tp-cp can do on every size.
    able = [i for i in range(len(seeds)) if all(tp_cp[n][i].result() for n in sizes)]
    rows = [("FlexSP", [seconds(plans[n]) for n in sizes], "1.91, 1.82"),
            ("best fixed", [best_fixed(plans[n], 128)[1] for n in sizes], "1.65 (DeepSpeed)"),
            ("BatchAda", [adapted_seconds(plans[n]) for n in sizes], ""),
            ("tp-cp", [seconds([tp_cp[n][i] for i in able]) if able else None for n in sizes], "1.71 (Megatron)")]
    table(("", *(f"N={n}" for n in sizes), "16 to 32", "32 to 64", "published"),
          [(name, *(s(t) for t in times), *(over(a, b) if b else "-" for a, b in zip(times, times[1:])), published)
           for name, times, published in rows])


def shape(plan):
    """<32, 16, 8x2>: a microbatch's groups that have sequences. Equal neighbours are counted."""
    texts = []
    for microbatch in plan["microbatches"]:
        degrees = [group["degree"] for group in microbatch["groups"] if group["sequences"]]
        counted = [(d, degrees.count(d)) for d in sorted(set(degrees), reverse=True)]
        text = "<" + ", ".join(str(d) if n == 1 else f"{d}x{n}" for d, n in counted) + ">"
        if texts and texts[-1][0] == text:
            texts[-1][1] += 1
        else:
            texts.append([text, 1])
    return ", ".join(text if n == 1 else f"{text}x{n}" for text, n in texts)


PUBLISHED_SHAPES = [
    {"fixed:64": "<64>x5", "batch-ada": "<16x4>x5", "flex": "<32, 16, 8x2>, <8x8>x2, <8x7, 4x2>, <1x64>"},
    {"fixed:64": "<64>x7", "batch-ada": "<32x2>x7", "flex": "<64>, <32, 16x2>, <16x3, 8x2>, <8x8>x2, <1x64>"},
]


def cases(ask, seeds):
    plans = [{name: ask(**case("commoncrawl-like", 384, seed), strategy=name) for name in published}
             for seed, published in enumerate(PUBLISHED_SHAPES)]
    yield
    title("Two plans", "7b, commoncrawl-like, 384K, 64 devices; other batches than the published ones.")
    for number, (own, published) in enumerate(zip(plans, PUBLISHED_SHAPES)):
        print(f"Batch {number + 1}")
        for name, future in own.items():
            plan = future.result()
            print(f"  {name:<10} {plan['predicted_ms'] / 1000:6.2f} s  {shape(plan)}")
            print(f"  {'':<10} {'published':>8}  {published[name]}")
        by_degree = {}
        for microbatch in own["flex"].result()["microbatches"]:
            for group in microbatch["groups"]:
                by_degree[group["degree"]] = by_degree.get(group["degree"], 0) + len(group["sequences"])
        print("  sequences by degree: " + ", ".join(f"{n} on {d}" for d, n in sorted(by_degree.items()) if n))
    print("Published of batch 2: 379 on 4 or fewer, 113 on 8, 13 on 16, 3 on 32, 4 on 64")


def main():
    program, batches = sys.argv[1], int(sys.argv[2])
    seeds = range(batches)
    with tempfile.TemporaryDirectory() as folder:
        ask = Planner(program).ask
        print(f"FlexSP in its published cost model: means over {batches} batches of 512 sequences, from seed 0 on")
        sections = [speedups(ask, seeds), ablations(ask, seeds), estimator(ask, seeds, folder), exchanges(ask, seeds),
                    contexts(ask, seeds), scaling(ask, seeds), cases(ask, seeds)]
        for section in sections:
            next(section)
        for section in sections:
            next(section, None)


main()
