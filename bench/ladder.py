#!/usr/bin/env python3
"""The rungs from plain loops to the dense engine on one problem, each checked against float64 before it is timed.

    bench/ladder.py BENCH PROBLEMS.json ID OUT.json       BENCH is halo_bench_conv

OUT.json is what bench/performance_page.py shows; steps inside an engine are in docs/journal.md.
"""
import json
import subprocess
import sys
import tempfile

RUNGS = (
    ("direct", "fp32", "Plain loops, one thread an output: the sum that every other kernel is held against."),
    ("portable", "fp32", "Implicit GEMM with `mma.sync` on any GPU since 8.0; operands split in three TF32 products keep float32 accuracy."),
    ("dense", "fp32", "Hopper: `wgmma` with the halo gathered straight into registers, copies by warps of their own, weights laid out once."),
    ("portable", "tf32", "One product in place of three."),
    ("dense", "tf32", "One product, and results stored by other warps while the next tile is multiplied."),
)


def measure(bench, problems, problem, kernel, precision):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run([bench, "--problems", problems, "--only", problem, "--pass", "forward", "--precision", precision,
                        "--force", kernel, "--json", out.name], check=True, stdout=subprocess.DEVNULL)
        return json.load(open(out.name))


def main():
    bench, problems, problem, path = sys.argv[1:]
    rungs = []
    for kernel, precision, sentence in RUNGS:
        table = measure(bench, problems, problem, kernel, precision)
        row = table["rows"][0]
        rungs.append({"kernel": kernel, "precision": precision, "sentence": sentence,
                      **{k: row[k] for k in ("ms", "floor_ms", "tflops", "gbps", "error")}})
        print(f"{kernel:10} {precision} {row['ms']:10.4f} ms {row['tflops']:8.2f} TFLOP/s  {sentence}", flush=True)
    with open(path, "w") as out:
        json.dump({"gpu": table["gpu"], "commit": table["commit"], "problem": problem, "rungs": rungs}, out, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
