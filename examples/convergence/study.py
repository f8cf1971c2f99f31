"""study.py: trains the runs of a preset, one per core, and writes the report. run.sh starts it."""
import argparse
import ctypes
import hashlib
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time

import presets
import report

FORMAT = 1  # of the logs


def fail(message, code=2):
    sys.exit(print(f"convergence: {message}", file=sys.stderr) or code)


def write(path, text):
    """All of it or nothing."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    os.replace(part, path)


def dies_with_parent():
    """A killed study leaves no run behind, which would hold the lock of its checkpoints."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def summary(metrics, num_steps):
    """What the report needs of a run's metrics.jsonl."""
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    if [row["step"] for row in rows] != list(range(1, num_steps + 1)):
        fail(f"{metrics}: its rows are not steps 1 to {num_steps}: remove the folder of this run", 3)
    every = max(1, len(rows) // 100)
    trained = [[rows[n]["step"], sum(row["loss"] for row in rows[n + 1 - every:n + 1]) / every]
               for n in range(every - 1, len(rows), every)]
    last = rows[-1]
    pairs = last.get("mismatch", [1])
    times = sorted(row["step_time_s"] for row in rows)
    return {"validation": [[row["step"], row["validation_loss"]] for row in rows if "validation_loss" in row],
            "training": trained, "largest_norm": max(row["grad_norm"] for row in rows[len(rows) // 20:] or rows),
            "max_delay": max(row.get("max_delay", 0) for row in rows),
            "mismatch_share": 1 - pairs[0] / sum(pairs), "seconds_per_update": times[len(times) // 2],
            "tokens": last["tokens"]}


class Study:
    def __init__(self, options):
        self.out = pathlib.Path(options.out)
        self.data = os.path.abspath(options.data)
        self.runs = presets.PRESETS[options.preset]()
        self.program = os.environ["SLUICE"]
        self.stopping = threading.Event()
        self.running = {}
        self.lock = threading.Lock()
        self.preset = options.preset

    def begin(self):
        """Makes the folder, or checks that what is there is of this study."""
        text = pathlib.Path(self.data).read_bytes()
        mine = {"format": FORMAT, "preset": self.preset, "data_sha256": hashlib.sha256(text).hexdigest()}
        path = self.out / "study.json"
        if path.exists():
            try:
                found = json.loads(path.read_text())
            except ValueError:
                fail(f"{path} is no JSON: remove the folder, or give another one with --out", 3)
            for key, value in mine.items():
                if not isinstance(found, dict) or found.get(key) != value:
                    theirs = found.get(key) if isinstance(found, dict) else None
                    fail(f"{self.out} holds logs with {key} {theirs}, and this study's is {value}: give another folder "
                         "with --out, or remove that one", 3)
        else:
            if self.out.exists() and any(self.out.iterdir()):
                fail(f"{self.out} is not empty and holds no study: give another folder with --out")
            self.out.mkdir(parents=True, exist_ok=True)
            write(path, json.dumps(mine) + "\n")

    def folder(self, run):
        return self.out / "runs" / run["id"]

    def result(self, run):
        """The log of a finished run, or None."""
        path = self.folder(run) / "result.json"
        if not path.exists():
            return None
        try:
            log = json.loads(path.read_text())
            if log["format"] != FORMAT or log["run"] != run or log["flags"] != presets.flags(run, log["lr"], "DATA"):
                raise KeyError
        except (ValueError, KeyError, TypeError):
            fail(f"{path} is of another version of this study: remove its folder, and the run is made again", 3)
        return log

    def rate(self, run):
        """The learning rate of a run, once that can be said: among those tried the one with the least loss."""
        if not isinstance(run["lr"], str):
            return run["lr"]
        tried = [r for r in self.runs if r["group"] == "rates" and r["method"] == run["lr"]]
        logs = [self.result(r) for r in tried]
        if not all(logs):
            return None
        losses = {}
        for r, log in zip(tried, logs):
            losses.setdefault(r["lr"], []).append(log["validation"][-1][1])
        return min(losses, key=lambda lr: sum(losses[lr]) / len(losses[lr]))

    def train(self, run, core):
        folder = self.folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "run.toml"
        config.write_text("")
        flags = presets.flags(run, self.rate(run), self.data)
        command = ["taskset", "-c", str(core), self.program, "train", str(config), *flags,
                   f"--checkpoint.folder={folder}/checkpoints", f"--metrics.folder={folder}/metrics"]
        TEMPORARY, TRIES = 75, 10  # a run of a study that was just killed may hold its lock for a moment
        for _ in range(TRIES):
            if not (folder / "checkpoints" / "LATEST").exists():
                # It begins anew, and would leave the rows of the run before where they are.
                shutil.rmtree(folder / "metrics", ignore_errors=True)
            with open(folder / "log.txt", "a") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=dies_with_parent,
                                           env={**os.environ, "OMP_NUM_THREADS": "1"})
                with self.lock:
                    self.running[run["id"]] = process
                code = process.wait()
            with self.lock:
                del self.running[run["id"]]
            if self.stopping.is_set():
                return
            if code != TEMPORARY:
                break
            time.sleep(0.5)
        if code != 0:
            self.stop()
            fail(f"{run['id']} ended with exit code {code}: {folder}/log.txt says why", code if code > 0 else 1)
        lr = self.rate(run)
        log = {"format": FORMAT, "run": run, "lr": lr, "flags": presets.flags(run, lr, "DATA"),
               **summary(folder / "metrics" / "metrics.jsonl", run["steps"])}
        write(folder / "result.json", json.dumps(log, indent=1) + "\n")
        for rest in ("checkpoints", "metrics"):
            shutil.rmtree(folder / rest)

    def stop(self):
        """Ends what runs; each saves where it is."""
        self.stopping.set()
        with self.lock:
            for process in self.running.values():
                process.terminate()

    def done_updates(self, run):
        if (self.folder(run) / "result.json").exists():
            return run["steps"]
        try:
            with open(self.folder(run) / "metrics" / "metrics.jsonl", "rb") as rows:
                return rows.read().count(b"\n")
        except OSError:
            return 0

    def train_all(self, jobs, quiet):
        cores = sorted(os.sched_getaffinity(0))[:jobs]
        # Those that decide the rates first, then the longest first.
        left = sorted((r for r in self.runs if not self.result(r)),
                      key=lambda r: (r["group"] != "rates", -r["steps"]))
        waiting, failed = list(left), []

        def next_run():
            with self.lock:
                for n, run in enumerate(waiting):
                    if self.rate(run) is not None:
                        return waiting.pop(n)
            return None

        def work(core):
            while not self.stopping.is_set() and waiting:
                run = next_run()
                if run is None:
                    time.sleep(0.2)
                    continue
                try:
                    self.train(run, core)
                except SystemExit as error:
                    failed.append(error.code)
                    self.stop()

        threads = [threading.Thread(target=work, args=(core,)) for core in cores]
        for thread in threads:
            thread.start()
        everything = sum(r["steps"] for r in self.runs)
        begun, before = time.monotonic(), sum(map(self.done_updates, self.runs))
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.1 if quiet else 1)
            if quiet:
                continue
            done = sum(map(self.done_updates, self.runs))
            speed = (done - before) / max(time.monotonic() - begun, 1e-9)
            rest = f", {(everything - done) / speed / 60:.0f} minutes left" if speed > 0 else ""
            finished = sum(1 for r in self.runs if self.done_updates(r) == r["steps"])
            print(f"\r\033[K{finished} of {len(self.runs)} runs, {done:,} of {everything:,} updates{rest}", end="",
                  file=sys.stderr, flush=True)
        if not quiet:
            print(file=sys.stderr)
        if failed:
            sys.exit(failed[0])
        return not self.stopping.is_set()


def main():
    parser = argparse.ArgumentParser(prog="examples/convergence/run.sh", description="Trains the runs of a preset, one "
                                     "per core, and writes a report. Started again, it goes on where it was.")
    parser.add_argument("--preset", default="headline", help=f"{', '.join(presets.PRESETS)} (default headline)")
    parser.add_argument("--out", default="convergence", help="folder of the logs and the report (default convergence)")
    parser.add_argument("--jobs", type=int, default=0, help="runs at a time, one core each (default: all cores)")
    parser.add_argument("--data", default="", help="text to train on (default: the King James Bible, 4.1 MB)")
    parser.add_argument("--report-only", action="store_true", help="write the report of the logs that are there")
    options = parser.parse_args()
    if options.preset not in presets.PRESETS:
        fail(f"--preset is {options.preset}: needs one of {', '.join(presets.PRESETS)}")
    cores = len(os.sched_getaffinity(0))
    if options.jobs < 0 or options.jobs > cores:
        fail(f"--jobs is {options.jobs}: needs 1 to {cores}, the cores of this machine")
    if not options.data:
        options.data = options.out.rstrip("/") + ".kjv.txt"
        if not os.path.exists(options.data):
            subprocess.run([os.environ["SLUICE_CORPUS"], options.data], check=True)
    elif not os.path.isfile(options.data):
        fail(f"--data is {options.data}: there is no such file")
    study = Study(options)
    study.begin()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: study.stop())
    if not options.report_only and not study.train_all(options.jobs or cores, not sys.stderr.isatty()):
        fail(f"stopped; the same command goes on (logs: {study.out})", 75)
    missing = [run["id"] for run in study.runs if not study.result(run)]
    if missing:
        fail(f"{len(missing)} of {len(study.runs)} runs have not been made, {missing[0]} first: start it without "
             "--report-only")
    report.write_report(study.out, [study.result(run) for run in study.runs], study.program, options.preset)
    print(study.out / "report.md")


main()
