#!/usr/bin/env python3
"""Writes docs/performance.md and its pictures from bench/results/*.json.

    bench/performance_page.py            in the top folder of the tree
"""
import json
import math
import os

PASSES = ("forward", "backward_input", "backward_weight")
RESULTS, DOCS = "bench/results", "docs"
DENSE = ("seed1_alexnet_50", "seed3_tr3d_68", "54", "55", "56", "57", "58", "60", "61", "62", "63", "64", "65", "66", "67",
         "69", "70", "71", "74", "76", "77", "78", "80")


def load(name):
    path = os.path.join(RESULTS, name)
    return json.load(open(path)) if os.path.exists(path) else None


def peer(row):
    times = [t for t in (row["torch_nchw_ms"], row["torch_cl_ms"]) if t]
    return min(times) if times else None


def ratio(row, time="halo_ms"):
    return peer(row) / row[time] if row and row.get(time) and peer(row) else None


def show(value, digits=3):
    return "-" if value is None else f"{value:.{digits}g}"


def mean_and_worst(rows, time="halo_ms"):
    ratios = [(ratio(r, time), r["id"]) for r in rows if ratio(r, time)]
    if not ratios:
        return "-"
    mean = math.exp(sum(math.log(r) for r, _ in ratios) / len(ratios))
    return f"{mean:.2f} ({min(ratios)[0]:.2f}: {min(ratios)[1]})"


def chart(path, title, labels, series):
    """Grouped horizontal bars on a logarithmic axis from 0.5 to 64, as SVG."""
    colours = ("#2f6db5", "#e08a1e", "#3c9a5f")
    low, high, left, width, bar = 0.5, 64.0, 150, 560, 6
    step = bar * len(series) + 8
    height = 60 + step * len(labels)
    x = lambda v: left + width * math.log(max(low, min(high, v)) / low) / math.log(high / low)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 30}" height="{height}" font-family="sans-serif" '
           f'font-size="11"><rect width="100%" height="100%" fill="white"/>',
           f'<text x="{left}" y="16" font-size="13">{title}</text>']
    for i, (name, _) in enumerate(series):
        out.append(f'<rect x="{left + 150 * i}" y="24" width="10" height="10" fill="{colours[i]}"/>'
                   f'<text x="{left + 14 + 150 * i}" y="33">{name}</text>')
    for tick in (0.5, 1, 2, 4, 8, 16, 32, 64):
        out.append(f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="42" y2="{height - 14}" '
                   f'stroke="{"#888" if tick == 1 else "#ddd"}"/>'
                   f'<text x="{x(tick):.1f}" y="{height - 3}" text-anchor="middle">{tick:g}x</text>')
    for row, label in enumerate(labels):
        y = 46 + step * row
        out.append(f'<text x="{left - 6}" y="{y + step / 2:.1f}" text-anchor="end">{label}</text>')
        for i, (_, values) in enumerate(series):
            if values[row]:
                out.append(f'<rect x="{x(low):.1f}" y="{y + bar * i}" width="{x(values[row]) - x(low):.1f}" '
                           f'height="{bar - 1}" fill="{colours[i]}"/>')
    with open(path, "w") as file:
        file.write("\n".join(out) + "\n</svg>\n")


def convolutions(table):
    rows = {(r["id"], r["pass"], r["precision"]): r for r in table["rows"]}
    ids = list(dict.fromkeys(r["id"] for r in table["rows"]))
    precisions = [p for p in ("fp32", "tf32", "bf16", "f16") if any(key[2] == p for key in rows)]
    names = {"fp32": "float32-accurate", "tf32": "TF32", "bf16": "bfloat16", "f16": "float16"}
    text = ["## Convolution", "", f"{table['about']}.", "",
            "A ratio is the time of PyTorch's better layout (contiguous or channels_last) at the same precision over Halo's. "
            "The floor is the larger of arithmetic at the sustained tensor-core rate and of bytes at the copy rate.", "",
            "PyTorch over Halo, geometric mean (worst problem):", "",
            "| | forward | backward_input | backward_weight |", "|---|---|---|---|"]
    for p in precisions:
        for title, chosen in (("23 dense problems", [i for i in ids if i in DENSE]),
                              ("others", [i for i in ids if i not in DENSE and not i.startswith("b1_")]),
                              ("batch 1", [i for i in ids if i.startswith("b1_")])):
            cells = [mean_and_worst([rows[(i, w, p)] for i in chosen if (i, w, p) in rows]) for w in PASSES]
            if any(c != "-" for c in cells):
                text.append(f"| {names[p]}, {title} | " + " | ".join(cells) + " |")
    cells = [mean_and_worst([rows[(i, w, "fp32")] for i in ids if i in DENSE and (i, w, "fp32") in rows], "portable_ms")
             for w in PASSES]
    if any(c != "-" for c in cells):
        text += ["| float32-accurate, 23 dense problems, portable kernels | " + " | ".join(cells) + " |", "",
                 "Portable kernels are those that other GPUs since compute capability 8.0 run, here forced on this one."]
    for p in precisions:
        picture = f"performance_{p}.svg"
        chart(os.path.join(DOCS, picture), f"PyTorch time / Halo time, {names[p]}", ids,
              [(w, [ratio(rows.get((i, w, p))) for i in ids]) for w in PASSES])
        text += ["", f"### {names[p]}", "", f"![ratios]({picture})", "",
                 "Milliseconds: Halo / PyTorch / floor" +
                 (" / portable kernels" if p == "fp32" and any("portable_ms" in r for r in table["rows"]) else "") +
                 ", and Halo's relative error.", "",
                 "| problem | forward | error | backward_input | error | backward_weight | error |", "|---|---|---|---|---|---|---|"]
        for i in ids:
            cells = []
            for w in PASSES:
                r = rows.get((i, w, p))
                portable = f" / {show(r['portable_ms'])}" if r and r.get("portable_ms") else ""
                recalled = "\\*" if r and r.get("torch_recalled") else ""
                cells += [f"{show(r['halo_ms'])} / {show(peer(r))}{recalled} / {show(r['floor_ms'])}{portable}",
                          show(r["error"], 2)] if r else ["-", "-"]
            text.append(f"| {i} | " + " | ".join(cells) + " |")
    if any(r.get("torch_recalled") for r in table["rows"]):
        text += ["", "\\*: cuDNN's short search found nothing as fast as the problem file's own figure for PyTorch, which is "
                 "shown instead."]
    return text


def unaligned(table):
    rows = {(r["id"], r["precision"], r["pass"], r["form"]): r for r in table["rows"]}
    forms = {"odd_width": "odd widths", "odd": "all extents odd", "slice": "slices"}
    precisions = list(dict.fromkeys(r["precision"] for r in table["rows"]))
    text = ["### Odd extents and unaligned slices", "",
            f"{table['gpu']}, `halo_bench_conv --form listed,odd_width,odd,slice`: the time a byte over that of the problem as "
            "listed, forward / backward_input / backward_weight. Slices: all operands begin an element behind an aligned "
            "address.", "",
            "| problem | " + " | ".join(f"{name}, {p}" for p in precisions for name in forms.values()) + " |",
            "|---|" + "---|" * (len(forms) * len(precisions))]
    for i in dict.fromkeys(r["id"] for r in table["rows"]):
        cells = []
        for p in precisions:
            for form in forms:
                pairs = [(rows.get((i, p, w, "listed")), rows.get((i, p, w, form))) for w in PASSES]
                cells.append(" / ".join(f"{a['gbps'] / b['gbps']:.2f}" if a and b else "-" for a, b in pairs))
        text.append(f"| {i} | " + " | ".join(cells) + " |")
    return text


FIELDS = {"train": "training step, ms", "train256": "training step, ms", "infer": "inference, ms", "infer256": "inference, ms",
          "infer1": "one image, ms", "peak_MB": "peak, MiB", "per_token": "a token, ms", "fwd": "forward, ms",
          "fwd_kept": "forward with the filter's spectrum kept, ms", "fwdbwd": "forward and backward, ms"}


def models(table):
    """Halo beside the better of PyTorch's layouts."""
    text = ["## Models and long convolution", "", "Both sides in one call, medians, loss and optimiser included; the models and "
            "steps are those of `bench/bench_models.cpp` and `bench/torch_models.py`, which checks that parameter counts agree. "
            "`hyena_dD_nN_LL_BB`: width, layers, length, batch; `long_conv_B_H_L`: batch, channels, length, beside the product "
            "of transforms of twice the length; `conv_b1`: layers on one image (channels, size, kernel), replayed as graphs.",
            f"{table['about'][0].upper()}{table['about'][1:]}." if table.get("about") else "", "",
            "| | | Halo | PyTorch | ratio |", "|---|---|---|---|---|"]
    for name, ours in table["halo"].items():
        layouts = [t for key, t in table.get("torch", {}).items() if key in (name, name.replace("_nchw", "_cl"))]
        for field, value in ours.items():
            if field == "parameters":
                continue
            theirs = min((t[field] for t in layouts if field in t), default=None)
            text.append(f"| {name.replace('_nchw', '')} | {FIELDS.get(field, field + ', ms')} | {value:.5g} | "
                        + (f"{theirs:.5g} | {theirs / value:.2f} |" if theirs else "- | - |"))
    return text


def ops(table):
    rows = {(r["op"], r["dtype"]): r for r in table["rows"]}
    types = list(dict.fromkeys(r["dtype"] for r in table["rows"]))
    text = ["## Memory-bound ops", "", f"{table['about']}.", "",
            "Milliseconds, and in brackets their ratio to the byte floor: the bytes that an op cannot do without, at the copy rate.",
            "", "| op | size | " + " | ".join(types) + " |", "|---|---|" + "---|" * len(types)]
    for op, first in {r["op"]: r for r in table["rows"]}.items():
        cells = [f"{show(r['ms'])} ({r['ms'] / r['floor_ms']:.2f})" if (r := rows.get((op, t))) else "-" for t in types]
        text.append(f"| {op} | {' x '.join(str(n) for n in first['size'])} | " + " | ".join(cells) + " |")
    return text


def ladder(table):
    text = ["## From plain loops to the dense engine", "",
            f"Forward of problem {table['problem']}, {table['gpu']} (`bench/ladder.py`); steps inside the dense engine, those "
            "that did not help too, are in [the journal](journal.md#dense-engine).", "",
            "| kernel | precision | ms | TFLOP/s | GB/s | of the floor | error | |", "|---|---|---|---|---|---|---|---|"]
    for r in table["rungs"]:
        text.append(f"| {r['kernel']} | {r['precision']} | {show(r['ms'], 4)} | {show(r['tflops'])} | {show(r['gbps'])} | "
                    f"{r['floor_ms'] / r['ms']:.1%} | {r['error']:.1e} | {r['sentence']} |")
    return text


def main():
    text = ["# Performance", "", "Written by `bench/performance_page.py` from `bench/results/`; the commands that measure are in "
            "`bench/`."]
    for name, section in (("h200_conv.json", convolutions), ("h200_unaligned.json", unaligned),
                          ("h200_ladder.json", ladder), ("h200_models.json", models), ("h200_ops.json", ops)):
        table = load(name)
        if table:
            text += [""] + section(table)
    with open(os.path.join(DOCS, "performance.md"), "w") as out:
        out.write("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
