"""report.py: the report of a study from its logs. The same logs give the same bytes."""
import json
import math
import subprocess

import curves
import presets

LIMIT = 0.02  # nats: what amdp may lose at most, with 95 % confidence
POWER = 0.05  # nats: what the control must lose at least, or the test has no power

# Of the t distribution, two-sided 95 %, by degrees of freedom.
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


class Interval:
    """The mean of paired differences with its 95 % confidence interval."""

    def __init__(self, differences):
        n = len(differences)
        self.count, self.mean = n, sum(differences) / n
        self.half = math.inf
        if n > 1:
            deviation = math.sqrt(sum((x - self.mean) ** 2 for x in differences) / (n - 1))
            self.half = T95[n - 1] * deviation / math.sqrt(n)

    low = property(lambda self: self.mean - self.half)
    high = property(lambda self: self.mean + self.half)

    def text(self):
        if self.half == math.inf:
            return f"{self.mean:+.4f} (one seed)"
        return f"{self.mean:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"


def final(log):
    return log["validation"][-1][1]


def select(logs, **wanted):
    return sorted((log for log in logs if all(log["run"][key] == value for key, value in wanted.items())),
                  key=lambda log: log["run"]["seed"])


def paired(ours, theirs):
    """Differences of final losses, seed by seed."""
    losses = {log["run"]["seed"]: final(log) for log in theirs}
    return Interval([final(log) - losses[log["run"]["seed"]] for log in ours if log["run"]["seed"] in losses])


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]) + "\n"


def updates_to(log, target):
    """The update at which the validation loss first is at most the target, between two validations linearly."""
    before = None
    for step, loss in log["validation"]:
        if loss <= target:
            if before is None or before[1] == loss:
                return step
            return before[0] + (step - before[0]) * (before[1] - target) / (before[1] - loss)
        before = (step, loss)
    return None


class Simulator:
    """What a method's update takes, from `sluice schedule`, F, I and W taking equally long."""

    def __init__(self, program):
        self.program = program.replace("sluice-engine", "sluice")
        self.known = {}

    def ask(self, *words):
        if words not in self.known:
            ran = subprocess.run([self.program, "schedule", *map(str, words), "--format", "json"], capture_output=True,
                                 text=True)
            self.known[words] = json.loads(ran.stdout) if ran.returncode == 0 else None
        return self.known[words]

    def of(self, method, devices):
        """(time of an update, copies of the weights) with 4 microbatches per device, or None."""
        schedule, keys, per_device = presets.METHODS[method]
        if method == "sync":
            found = self.ask(schedule, "-d", devices, "-m", 4 * devices)
            return found and (found["makespan"], 1)
        words = [schedule, "-d", devices, "-m", max(per_device * devices, 1), "--windows", 8]
        scale = 1.0 if per_device == 4 else 4 * devices / max(per_device * devices, 1)
        if method == "pp2xdp":  # half as many stages, each of so many times the work
            words[2], words[4], scale = 2, 8, devices / 2
        if method == "control":
            words[-1] = 4 * devices
        for key, value in keys.items():
            if key.startswith("asynchronous."):
                words += ["--" + key.removeprefix("asynchronous.").replace("_", "-"), value]
        found = self.ask(*words)
        if not found or found["steady_utilisation"] is None:
            return None
        work = 3 * (4 * devices)  # of a device in an update: all microbatches, F, I and W
        copies = max(found["weight_copies"])
        return work / found["steady_utilisation"], copies * (devices // 2 if method == "pp2xdp" else 1)


def verdict(logs):
    sync, amdp = select(logs, group="headline", method="sync"), select(logs, group="headline", method="amdp")
    control = select(logs, group="headline", method="control")
    ours, theirs = paired(amdp, sync), paired(control, sync)
    steps = sync[0]["run"]["steps"]
    power, met = theirs.low >= POWER, ours.high <= LIMIT
    if not power:
        says = "**The test has no power**: the control did not lose enough, so nothing follows from it."
    elif met:
        says = "**The rule is met**: amdp preserves convergence here, within the limit."
    else:
        says = "**The rule is not met**: a loss above the limit cannot be ruled out."
    same = "" if amdp[0]["lr"] == sync[0]["lr"] else f" (rates {amdp[0]['lr']:g} and {sync[0]['lr']:g})"
    return "\n".join([
        "The rule was fixed before: amdp with M = 4d *preserves convergence* only if the upper end of the 95 % confidence",
        f"interval of its paired difference to sync is at most {LIMIT} nats after {steps} updates, each at its best rate,",
        f"and the lower end of the control's is at least {POWER} nats at sync's rate.", "",
        f"- amdp - sync{same}: {ours.text()} nats over {ours.count} seeds; upper end {ours.high:+.4f}, limit {LIMIT}",
        f"- control - sync: {theirs.text()} nats; lower end {theirs.low:+.4f}, needed {POWER}", "", says, ""])


def methods_table(logs, group, simulator, baseline="sync"):
    rows = []
    names = []
    for log in logs:
        key = (log["run"]["method"], log["run"]["optimizer"])
        if log["run"]["group"] == group and key not in names:
            names.append(key)
    for method, optimizer in names:
        ours = select(logs, group=group, method=method, optimizer=optimizer)
        theirs = select(logs, group=group, method=baseline, optimizer=optimizer)
        mean = sum(map(final, ours)) / len(ours)
        devices = ours[0]["run"]["devices"]
        cost, reference = simulator.of(method, devices), simulator.of("sync", devices)
        row = [method + ("" if optimizer == "adamw" else f", {optimizer}"), f"{ours[0]['lr']:g}", len(ours),
               ours[0]["run"]["steps"], f"{mean:.4f}", "" if method == baseline else paired(ours, theirs).text(),
               f"{100 * ours[0]['mismatch_share']:.0f} %", ours[0]["max_delay"]]
        row += [f"{cost[0] / reference[0]:.3f}", cost[1]] if cost and reference else ["", ""]
        time = []
        for log in ours:
            match = [other for other in theirs if other["run"]["seed"] == log["run"]["seed"]]
            reached = updates_to(log, final(match[0]) + LIMIT) if match else None
            time.append(reached)
        if cost and reference and time and all(t is not None for t in time):
            all_updates = sum(time) / len(time)
            row.append(f"{all_updates:.0f}")
            row.append(f"{all_updates * cost[0] / reference[0] / ours[0]['run']['steps']:.3f}")
        else:
            row += ["never" if theirs else "", ""]
        row.append(f"{ours[0]['tokens'] / (sum(log['seconds_per_update'] for log in ours) / len(ours)):,.0f}")
        rows.append(row)
    return table(["method", "rate", "seeds", "updates", "loss", "difference to sync", "mismatched", "delay",
                  "time of an update", "weight copies", f"updates to sync's loss + {LIMIT}", "time to it",
                  "tokens/s, one core"], rows)


def rates_table(logs):
    rows = [[log["run"]["method"], f"{log['lr']:g}", f"{final(log):.4f}"] for log in select(logs, group="rates")]
    return table(["method", "rate", "loss"], sorted(rows))


def ablations(simulator):
    d, m = 8, 32
    variants = [
        ("A, split, update slot d", ["--order", "A"], m), ("A, split, update slot 3", ["--order", "A", "--update-slot", 3], m),
        ("A, fused, border 1", ["--order", "A", "--backward", "fused", "--border", 1], m),
        ("A, fused, border 2", ["--order", "A", "--backward", "fused", "--border", 2], m),
        ("R", ["--order", "R"], m), ("T", ["--order", "T"], m)]
    variants += [(f"first in first out, {k} pipes", ["--order", "frozen", "--pipes", k], m) for k in (1, 2, 4, 8)]
    variants += [(f"first in first out, 4 pipes, {n} in flight", ["--order", "frozen", "--pipes", 4, "--in-flight", n], m)
                 for n in (3, 4)]
    variants += [(f"A, split, M/d = {n}", ["--order", "A"], n * d) for n in (1, 2, 4, 8)]
    rows = []
    for name, words, microbatches in variants:
        found = simulator.ask("amdp", "-d", d, "-m", microbatches, "--windows", 10, *words, "--max-mismatch", -1,
                              "--max-delay", -1) or simulator.ask("amdp", "-d", d, "-m", microbatches, "--windows", 10, *words)
        if not found:
            rows.append([name, "", "", "", ""])
            continue
        busy = found["steady_utilisation"]
        rows.append([name, "" if busy is None else f"{100 * busy:.1f} %",
                     "" if found["mismatch_share"] is None else f"{100 * found['mismatch_share']:.1f} %",
                     found["max_mismatch"], max(found["weight_copies"])])
    return table(["8 devices", "at work", "mismatched pairs", "mismatch", "weight copies"], rows)


def losses(logs, simulator):
    """Where amdp does not win, from the logs and the simulator."""
    lines = []
    reference = simulator.of("amdp", 8)
    for method in ("pp2xdp", "async-1f1b"):
        ours, theirs = select(logs, group="methods", method=method), select(logs, group="methods", method="amdp")
        cost = simulator.of(method, ours[0]["run"]["devices"]) if ours else None
        if not ours or not theirs or not cost or not reference:
            continue
        lines.append(f"- **{method}**: {paired(ours, theirs).text()} nats from amdp, {cost[0] / reference[0]:.2f} times its "
                     f"time per update, {cost[1]} copies of the weights beside {reference[1]}")
    ours, theirs = select(logs, group="methods", method="amdp, M = d"), select(logs, group="methods", method="2bw")
    if ours and theirs:
        lines.append(f"- **amdp with M = d**: {paired(ours, theirs).text()} nats from 2bw")
    return "\n".join(lines) + "\n" if lines else "Nothing of this was trained.\n"


SECTIONS = [
    ("methods", "The other methods", "At sync's rate, fewer updates. With two seeds an interval is wide."),
    ("optimizers", "Muon and NAdam", "At sync's rate; each beside sync with the same optimizer."),
    ("bert", "BERT", "The same model as an encoder that predicts masked tokens."),
    ("d4", "Four devices", "Two layers on each."),
    ("unclipped", "Without clipping", "One seed each."),
]


def write_report(out, logs, program, preset):
    simulator = Simulator(program)
    parts = ["# Does asynchronous training converge as well?", "",
             f"Preset {preset}: {len(logs)} runs, {sum(log['run']['steps'] for log in logs):,} updates of "
             f"{logs[0]['tokens']:,} tokens. Losses are those of held-out text, in nats per token; differences are paired "
             "by seed, with 95 % confidence intervals (t).", ""]
    if select(logs, group="headline"):
        headline = [log for log in logs if log["run"]["group"] == "headline"]
        curves.write(out / "curves.svg", "held-out loss", headline, relative=False)
        curves.write(out / "differences.svg", "held-out loss less that of sync", headline, relative=True)
        parts += ["## The verdict", "", verdict(logs), "![held-out loss by update](curves.svg)", "",
                  "![difference to sync by update](differences.svg)", "", methods_table(logs, "headline", simulator)]
    if select(logs, group="rates"):
        parts += ["## Learning rates", "", "The best of each is used.", "", rates_table(logs)]
    for group, title, words in SECTIONS:
        if select(logs, group=group):
            parts += [f"## {title}", "", words, "", methods_table(logs, group, simulator)]
    if select(logs, group="methods"):
        parts += ["## Where amdp does not win", "", losses(logs, simulator)]
    parts += ["## What the orders cost", "", "By the simulator, with F, I and W of equal length.", "", ablations(simulator),
              "Times of an update are the simulator's, relative to sync on as many devices, with balanced stages and free "
              "messages; time to a loss is updates times that. Tokens/s are measured, all devices of a run on one core: "
              "they compare nothing but what a method costs in all.", ""]
    (out / "report.md").write_text("\n".join(parts))
