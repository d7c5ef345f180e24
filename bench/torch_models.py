#!/usr/bin/env python3
"""Times whole models in Halo and in PyTorch, one after the other on the same GPU.

    bench/torch_models.py build/bin/halo_bench_models [--only PART]... [--json bench/results/h200_models.json]

Writes {"halo": {case: figures}, "torch": {case: figures}}; cases that were not run keep what the file has. Figures are
milliseconds (medians), the peak of live memory in MiB and the number of parameters, which must agree.
"""
import argparse
import json
import math
import os
import subprocess
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda"


def median_ms(body, budget_ms):
    """The median of single calls, by events."""

    def once():
        start, stop = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        body()
        stop.record()
        return start, stop

    for _ in range(2):
        body()
    start, stop = once()
    stop.synchronize()
    calls = max(5, min(100, int(budget_ms / max(start.elapsed_time(stop), 1e-3))))
    pairs = [once() for _ in range(calls)]
    torch.cuda.synchronize()
    times = sorted(a.elapsed_time(b) for a, b in pairs)
    return times[calls // 2]


class HyenaMixer(nn.Module):
    """The order-2 operator with an implicit filter; see nn/models/hyena.h."""

    def __init__(self, width, length, filter_width=64):
        super().__init__()
        self.inner = nn.Linear(width, 3 * width)
        self.outer = nn.Linear(width, width)
        self.short = nn.Conv1d(3 * width, 3 * width, 3, padding=2, groups=3 * width)
        time = torch.linspace(0, 1, length)[:, None]
        angle = 2 * math.pi * torch.arange(length)[:, None] / length * torch.linspace(1e-4, 1, 2)
        self.register_buffer("embedding", torch.cat([time, angle.cos(), -angle.sin()], 1))
        decay = torch.linspace(math.log(1e-2) / 1.5, math.log(1e-2) / 0.3, width).abs()
        self.register_buffer("window", torch.exp(-time * decay))
        sizes = [5, filter_width, filter_width, filter_width]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.last = nn.Linear(filter_width, width, bias=False)
        self.frequency = nn.Parameter(torch.ones(1, filter_width))
        self.skip = nn.Parameter(torch.randn(width))

    def forward(self, x):
        length = x.shape[1]
        gate_out, gate_in, v = self.short(self.inner(x).transpose(1, 2))[..., :length].chunk(3, 1)
        h = self.embedding
        for layer in self.hidden:
            h = torch.sin(self.frequency * layer(h))
        taps = (self.last(h) * self.window).t()
        u = v * gate_in
        spectrum = torch.fft.rfft(u, n=2 * length) * torch.fft.rfft(taps, n=2 * length)
        y = torch.fft.irfft(spectrum, n=2 * length)[..., :length] + u * self.skip[:, None]
        return self.outer((y * gate_out).transpose(1, 2))


class HyenaBlock(nn.Module):
    def __init__(self, width, length):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mixer = HyenaMixer(width, length)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.mixer(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


def hyena_lm(width, layers, length, vocabulary=16):
    blocks = [HyenaBlock(width, length) for _ in range(layers)]
    return nn.Sequential(nn.Embedding(vocabulary, width), *blocks, nn.LayerNorm(width),
                         nn.Linear(width, vocabulary, bias=False))


def alexnet():
    relu, pool = (lambda: nn.ReLU(True)), (lambda: nn.MaxPool2d(3, 2))
    return nn.Sequential(
        nn.Conv2d(3, 64, 11, 4, 2), relu(), pool(), nn.Conv2d(64, 192, 5, 1, 2), relu(), pool(),
        nn.Conv2d(192, 384, 3, 1, 1), relu(), nn.Conv2d(384, 256, 3, 1, 1), relu(), nn.Conv2d(256, 256, 3, 1, 1), relu(),
        pool(), nn.Flatten(), nn.Dropout(), nn.Linear(9216, 4096), relu(), nn.Dropout(), nn.Linear(4096, 4096), relu(),
        nn.Linear(4096, 1000))


def training(model, x, target, optimizer):
    def step():
        loss = F.cross_entropy(model(x).flatten(0, -2), target.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def finished(model, figures):
    figures["peak_MB"] = torch.cuda.max_memory_allocated() >> 20
    figures["parameters"] = sum(p.numel() for p in model.parameters())
    return figures


def run_hyena(width, layers, length, batch):
    model = hyena_lm(width, layers, length).to(DEVICE)
    ids = torch.randint(0, 16, (batch, length), device=DEVICE)
    step = training(model, ids, ids, torch.optim.AdamW(model.parameters(), 6e-4, fused=True))
    figures = {"train": median_ms(step, 600)}
    with torch.no_grad():
        figures["infer"] = median_ms(lambda: model(ids), 150)
    return finished(model, figures)


def run_alexnet(channels_last):
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = alexnet().to(DEVICE, memory_format=layout)
    x = torch.randn(256, 3, 224, 224, device=DEVICE).to(memory_format=layout)
    target = torch.randint(0, 1000, (256,), device=DEVICE)
    step = training(model, x, target, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=True))
    figures = {"train256": median_ms(step, 600)}
    model.eval()
    one = x[:1].clone(memory_format=layout)
    with torch.no_grad():
        figures["infer256"] = median_ms(lambda: model(x), 150)
        figures["infer1"] = median_ms(lambda: model(one), 150)
    return finished(model, figures)


def run_long_conv(batch, channels, length):
    """By transforms of twice the length, which is how PyTorch programs write it."""
    x = torch.randn(batch, channels, length, device=DEVICE, requires_grad=True)
    w = torch.randn(channels, length, device=DEVICE, requires_grad=True)
    g = torch.randn(batch, channels, length, device=DEVICE)

    def forward():
        spectrum = torch.fft.rfft(x, n=2 * length) * torch.fft.rfft(w, n=2 * length)
        return torch.fft.irfft(spectrum, n=2 * length)[..., :length]

    with torch.no_grad():
        figures = {"fwd": median_ms(forward, 150)}
    figures["fwdbwd"] = median_ms(lambda: torch.autograd.grad(forward(), (x, w), g), 150)
    return figures


def torch_cases():
    """(name, whether in TF32, body)"""
    for precision in ("fp32", "tf32"):
        tf32 = precision == "tf32"
        for width, layers, length, batch in ((128, 2, 1024, 256), (256, 8, 32768, 4), (256, 8, 131072, 1)):
            yield (f"hyena_d{width}_n{layers}_L{length}_B{batch}_{precision}", tf32,
                   lambda w=width, n=layers, l=length, b=batch: run_hyena(w, n, l, b))
        for layout in ("nchw", "cl"):
            yield f"alexnet_{precision}_{layout}", tf32, lambda last=layout == "cl": run_alexnet(last)
    for sizes in ((16, 768, 1024), (16, 768, 4096), (16, 768, 8192), (4, 768, 32768), (1, 768, 131072), (1, 256, 1 << 20)):
        yield "long_conv_{}_{}_{}".format(*sizes), False, lambda sizes=sizes: run_long_conv(*sizes)


def run_torch(only):
    torch.backends.cudnn.benchmark = True
    results = {}
    for name, tf32, body in torch_cases():
        if only and not any(part in name for part in only):
            continue
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        results[name] = {key: round(value, 4) for key, value in body().items()}
        print("torch", name, json.dumps(results[name]), flush=True)
    return results


def run_halo(program, only):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "halo.json")
        arguments = [text for part in only for text in ("--only", part)]
        subprocess.run([program, "--json", path, *arguments], check=True)
        with open(path) as file:
            return {name: {key: round(value, 4) for key, value in figures.items()}
                    for name, figures in json.load(file).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="halo_bench_models")
    parser.add_argument("--only", action="append", default=[], help="parts of names of cases")
    parser.add_argument("--json", help="file to merge the figures into")
    arguments = parser.parse_args()
    results = {"halo": run_halo(arguments.program, arguments.only), "torch": run_torch(arguments.only)}
    for name, figures in results["torch"].items():
        ours = results["halo"].get(name, {})
        assert ours.get("parameters") == figures.get("parameters") or not ours, f"{name}: other parameter counts"
        for key in set(ours) & set(figures) - {"parameters"}:
            print(f"{name:36} {key:10} halo {ours[key]:10.3f}  torch {figures[key]:10.3f}  "
                  f"ratio {figures[key] / ours[key]:6.2f}")
    if arguments.json:
        merged = {"halo": {}, "torch": {}}
        if os.path.exists(arguments.json):
            with open(arguments.json) as file:
                merged = json.load(file)
        for side, figures in results.items():
            merged[side].update(figures)
        with open(arguments.json, "w") as file:
            json.dump(merged, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
