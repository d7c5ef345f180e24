#!/usr/bin/env python3
"""Times PyTorch and Halo on the same GPU in one call, problem by problem, and merges the rows into a result file.

    bench/compare_with_pytorch.py --problems FILE.json [ID ...] [--passes ...] [--precisions fp32 tf32 bf16]

Both sides run the same way: fresh random data, a rest (after work at the power limit the clock is low for a tenth of a second,
and the driver clears memory that was given back), one run captured in a CUDA graph and replayed (inputs flushed from L2 where
they would fit; 20 runs a graph and a warm L2 for the batch-1 layers `b1_*`, whose forward finds the weights laid out, as
inference keeps them), medians of at least five replays. PyTorch runs contiguous and channels_last; its figure is the better
layout. A layout that the problem file has no time for beside the other's, or one longer by a third or more, is left out. cuDNN's
search among ten plans, PyTorch's own limit, can take a minute for one problem. So where the problem file knows what a whole
search found on such a GPU, cuDNN's own first choice is timed; if that is slower, the best of --plans; and if that is slower too,
PyTorch is credited with the file's time ("torch_recalled"). --full searches always.
Errors are relative Frobenius errors of sampled outputs against float64.
Rows are kept problem by problem. Several GPUs: one call each, with part of the problems and the same result file.
"""
import argparse
import fcntl
import json
import math
import os
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F

PASSES = ("forward", "backward_input", "backward_weight")
FLUSH_BYTES = 192 << 20
REST_S = 0.1
ALL_PLANS = 10  # of cuDNN's, in the order of its heuristics: PyTorch's own limit
NOISE = 1.04  # what times of two machines may differ by
SHORT = {"forward": "fwd", "backward_input": "dgrad", "backward_weight": "wgrad"}


class Problem:
    """A line of a problem file, as PyTorch's arguments."""

    def __init__(self, line):
        self.id, self.transposed = line["id"], line["kind"] == "transposed"
        self.n, self.cin, self.cout = line["n"], line["in_channels"], line["out_channels"]
        self.input, self.kernel = line["input"], line["kernel"]
        self.stride, self.padding, self.dilation = line["stride"], line["padding"], line["dilation"]
        self.output_padding, self.groups = line["output_padding"], line["groups"]
        self.rank = len(self.input)
        self.known_ms = line.get("torch_ms", {})
        self.warm = self.id.startswith("b1_")

    def forward(self, x, w):
        if self.transposed:
            return getattr(F, f"conv_transpose{self.rank}d")(
                x, w, None, self.stride, self.padding, self.output_padding, self.groups, self.dilation)
        return getattr(F, f"conv{self.rank}d")(x, w, None, self.stride, self.padding, self.dilation, self.groups)

    def backward(self, x, w, g, mask):
        return torch.ops.aten.convolution_backward(g, x, w, None, self.stride, self.padding, self.dilation, self.transposed,
                                                   self.output_padding, self.groups, mask)

    def run(self, which, x, w, g):
        if which == "forward":
            return self.forward(x, w)
        which_mask = (which == "backward_input", which == "backward_weight", False)
        return self.backward(x, w, g, which_mask)[0 if which == "backward_input" else 1]

    def known(self, which, precision, layout):
        return self.known_ms.get(precision, {}).get(f"{SHORT[which]}_{layout}")

    def layouts(self, which, precision, full):
        """The layouts that may be PyTorch's better one."""
        if self.rank == 1:
            return ["nchw"]
        known = {layout: self.known(which, precision, layout) for layout in ("nchw", "cl")}
        times = [time for time in known.values() if time]
        if full or not times:
            return list(known)
        return [layout for layout in known if known[layout] and known[layout] < 4 / 3 * min(times)]

    def tensors(self, dtype, layout):
        """x, w and an upstream gradient, random."""
        weight = (self.cin, self.cout // self.groups) if self.transposed else (self.cout, self.cin // self.groups)
        x = torch.randn(self.n, self.cin, *self.input, device="cuda", dtype=dtype)
        w = torch.randn(*weight, *self.kernel, device="cuda", dtype=dtype)
        if layout == "cl":
            form = torch.channels_last if self.rank == 2 else torch.channels_last_3d
            x, w = x.to(memory_format=form), w.to(memory_format=form)
        y = self.forward(x.to("meta"), w.to("meta"))  # cuDNN is not asked, so that its search comes with the timing
        return x, w, torch.randn_like(y, device="cuda")


def median_ms(run, warm, small):
    """Median milliseconds a run: graph replay, or plain launches where a graph cannot be captured."""
    for _ in range(2):
        run()
    torch.cuda.synchronize()
    repeats = 20 if warm else 1
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for _ in range(repeats):
                run()
        replay = graph.replay
    except RuntimeError:
        torch.cuda.synchronize()
        replay = lambda: [run() for _ in range(repeats)]
    scratch = torch.empty(FLUSH_BYTES, device="cuda", dtype=torch.uint8) if small and not warm else None
    torch.cuda.synchronize()
    time.sleep(REST_S)
    times, total = [], 0.0
    for i in range(52):
        if i >= 7 and total > 60:
            break
        if scratch is not None:
            scratch.fill_(i)
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record()
        replay()
        end.record()
        end.synchronize()
        total += begin.elapsed_time(end)
        if i >= 2:
            times.append(begin.elapsed_time(end) / repeats)
    return sorted(times)[len(times) // 2]


def sampled_error(problem, which, x, w, g):
    """PyTorch's own error on one sample (forward, backward_input) or two output channels (backward_weight)."""
    if which == "backward_weight" and problem.groups > 1:
        return None
    got = problem.run(which, x, w, g)
    torch.backends.cudnn.benchmark = False  # a search in float64 takes a minute
    if which == "backward_weight":
        cut = slice(0, 2)
        narrow = Problem(dict(id=problem.id, kind="transposed" if problem.transposed else "conv", n=problem.n,
                              in_channels=problem.cin, out_channels=2, input=problem.input, kernel=problem.kernel,
                              stride=problem.stride, padding=problem.padding, dilation=problem.dilation,
                              output_padding=problem.output_padding, groups=1))
        weight = w[:, cut] if problem.transposed else w[cut]
        got = got[:, cut] if problem.transposed else got[cut]
        right = narrow.run(which, x.double(), weight.double(), g[:, cut].double())
    else:
        got = got[:1]
        right = problem.run(which, x[:1].double(), w.double(), g[:1].double())
    return float((got.double() - right).norm() / right.norm())


def time_torch(problem, passes, precision, args):
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}.get(precision, torch.float32)
    rows = {which: {"torch_nchw_ms": None, "torch_cl_ms": None, "torch_error": None} for which in passes}
    wanted = {which: problem.layouts(which, precision, args.full) for which in passes}
    for layout in ("nchw", "cl"):
        of_layout = [which for which in passes if layout in wanted[which]]
        if not of_layout:
            continue
        try:
            x, w, g = problem.tensors(dtype, layout)
            small = (x.nbytes + w.nbytes + g.nbytes) < 4 * FLUSH_BYTES
            for which in of_layout:
                known = problem.known(which, precision, layout)
                for plans in (1, args.plans)[:args.plans] if known and not args.full else (ALL_PLANS,):
                    torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = plans > 1, plans
                    ms = median_ms(lambda: problem.run(which, x, w, g), problem.warm, small)
                    if known and ms <= NOISE * known:
                        break
                if known and not args.full and ms > NOISE * known:
                    ms = known
                    rows[which]["torch_recalled"] = True
                rows[which][f"torch_{layout}_ms"] = ms
                if args.torch_errors and layout == "nchw":
                    rows[which]["torch_error"] = sampled_error(problem, which, x, w, g)
        except RuntimeError as error:
            print(f"{problem.id} {precision} {layout}: PyTorch failed: {str(error)[:200]}", file=sys.stderr)
        x = w = g = None
        torch.cuda.empty_cache()
    return rows


def time_halo(program, problems, ids, which, precision, warm, force=None):
    if not ids:
        return {}
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [program, "--problems", problems, "--only", ",".join(ids), "--pass", which, "--precision", precision,
                   "--json", out.name] + (["--warm"] if warm else [])
        command += ["--prepared"] if warm and which == "forward" else []
        command += ["--force", force] if force else []
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        text = open(out.name).read()
    if not text:
        raise SystemExit(f"{program} wrote no result for {which} {precision}")
    table = json.loads(text)
    return {row["id"]: {**row, "gpu": table["gpu"], "driver": table["driver"]} for row in table["rows"]}


def merge(path, rows, about):
    """Puts rows in the place of those of the same problem, pass and precision; other calls may be doing the same."""
    with open(path + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        merge_locked(path, rows, about)


def merge_locked(path, rows, about):
    table = {"about": about, "rows": []}
    if os.path.exists(path):
        table = json.load(open(path))
    kept = {(r["id"], r["pass"], r["precision"]): r for r in table["rows"]}
    for row in rows:
        kept[(row["id"], row["pass"], row["precision"])] = row
    table["about"], table["rows"] = about, list(kept.values())
    with open(path + ".new", "w") as out:
        out.write(json.dumps(table, indent=0).replace("\n", "").replace('{"id"', '\n{"id"') + "\n")
    os.replace(path + ".new", path)


def summarise(rows, precision):
    for which in PASSES:
        ratios = [(min(t for t in (r["torch_nchw_ms"], r["torch_cl_ms"]) if t) / r["halo_ms"], r["id"]) for r in rows
                  if r["pass"] == which and r["precision"] == precision and r["halo_ms"] and
                  (r["torch_nchw_ms"] or r["torch_cl_ms"])]
        if ratios:
            mean = math.exp(sum(math.log(r) for r, _ in ratios) / len(ratios))
            print(f"{precision} {which}: {len(ratios)} problems, PyTorch / Halo geometric mean {mean:.2f}, "
                  f"worst {min(ratios)[0]:.2f} ({min(ratios)[1]})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*")
    parser.add_argument("--problems", required=True)
    parser.add_argument("--passes", nargs="+", default=PASSES, choices=PASSES)
    parser.add_argument("--precisions", nargs="+", default=["fp32", "tf32"], choices=["fp32", "tf32", "bf16", "f16"])
    parser.add_argument("--program", default="build/bin/halo_bench_conv")
    parser.add_argument("--out", default="bench/results/h200_conv.json")
    parser.add_argument("--commit", default="")
    parser.add_argument("--plans", type=int, default=4, help="of cuDNN's to search; 1: its first choice alone")
    parser.add_argument("--full", action="store_true", help="time PyTorch in both layouts, with cuDNN's whole search")
    parser.add_argument("--torch-errors", action="store_true", help="also measure PyTorch's own errors")
    parser.add_argument("--portable", action="store_true",
                        help="also force the kernels for GPUs before and after Hopper (dense problems, fp32)")
    args = parser.parse_args()
    problems = [Problem(line) for line in json.load(open(args.problems))["problems"]
                if not args.ids or line["id"] in args.ids or line["id"].split("_")[0] in args.ids]
    about = f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}: " \
            "medians in ms, both sides timed in the same call"
    rows = []
    for precision in args.precisions:
        halo = {}
        for which in args.passes:
            for warm in (False, True):
                ids = [p.id for p in problems if p.warm == warm]
                for name, row in time_halo(args.program, args.problems, ids, which, precision, warm).items():
                    halo[(name, which)] = row
        portable = {}  # what GPUs without Hopper's instructions would run, on this one
        if args.portable and precision == "fp32":
            ids = [p.id for p in problems if p.groups == 1 and not p.warm]
            for which in args.passes:
                for name, row in time_halo(args.program, args.problems, ids, which, precision, False, "portable").items():
                    portable[(name, which)] = row
        for problem in problems:
            first = len(rows)
            timed = time_torch(problem, args.passes, precision, args)
            for which in args.passes:
                ours = halo.get((problem.id, which), {})
                rows.append({"id": problem.id, "pass": which, "precision": precision, "halo_ms": ours.get("ms"),
                             **timed[which], "floor_ms": ours.get("floor_ms"), "bound": ours.get("bound"),
                             "error": ours.get("error"), "kernel": ours.get("kernel"),
                             "workspace_bytes": ours.get("workspace_bytes"), "commit": args.commit})
                if (problem.id, which) in portable:
                    rows[-1]["portable_ms"] = portable[(problem.id, which)]["ms"]
                    rows[-1]["portable_error"] = portable[(problem.id, which)]["error"]
                for key in list(rows[-1]):
                    if isinstance(rows[-1][key], float):
                        rows[-1][key] = float(f"{rows[-1][key]:.5g}")
                print(json.dumps(rows[-1]), flush=True)
            merge(args.out, rows[first:], about)
    for precision in args.precisions:
        summarise(rows, precision)


if __name__ == "__main__":
    main()
