#!/usr/bin/env python3
"""Times Halo and PyTorch on the same CPU cores in one run, turn by turn, and compares what they compute.

    bench/cpu_vs_pytorch.py build/bin/halo_bench_cpu [--only PART]... [--turns N] [--json bench/results/cpu.json]

Training steps of AlexNet (batch 32, 64x64, SGD) and of a Hyena language model (width 64, 2 layers, 1024 tokens, batch 8, AdamW),
both without dropout and from the same weights; and twenty convolutions: forward, gradient of the input, gradient of the
weight. Both sides use float32, the same data and as many threads as the process may have cores. A turn is a run that is not
timed and then a few that are; turns alternate; the figures are medians. Ratios are Halo's time over PyTorch's.
scripts/bench_cpu.sh makes an environment for this script and runs it.
"""
import argparse
import json
import math
import os
import statistics
import struct
import subprocess
import tempfile
import time

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads of one side must not take the cores of the other

import torch
import torch.nn as nn
import torch.nn.functional as F

import torch_models

PASSES = ("forward", "backward_input", "backward_weight")
# Relative Frobenius errors between two right float32 results.
CONV_BOUND, LOSS_BOUND = 5e-6, 1e-4
TYPES = {"F32": torch.float32, "I64": torch.int64}


def read_safetensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    return {name: torch.frombuffer(bytearray(data[slice(*entry["data_offsets"])]), dtype=TYPES[entry["dtype"]])
            .reshape(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def write_safetensors(path, tensors, metadata):
    header, chunks, at = {"__metadata__": metadata}, [], 0
    for name, tensor in tensors.items():
        chunks.append(tensor.contiguous().numpy().tobytes())
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + len(chunks[-1])]}
        at += len(chunks[-1])
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(chunks))


class Halo:
    """The program, as a partner that answers each order with a line."""

    def __init__(self, program, folder, threads):
        self.folder = folder
        self.process = subprocess.Popen([program, folder, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def order(self, *words):
        print(*words, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"halo_bench_cpu ended at: {' '.join(map(str, words))}")
        return answer

    def run(self, which, count):
        return [float(ms) for ms in self.order("run", which, count).split()]

    def results(self, name):
        self.order("save")
        return read_safetensors(os.path.join(self.folder, name + ".out.safetensors"))


class Conv:
    """One convolution and random operands."""

    def __init__(self, name, batch, channels_in, channels_out, size, kernel, stride=1, padding=0, dilation=1, groups=1,
                 transposed=False, output_padding=0):
        self.name, self.transposed, self.groups, rank = name, transposed, groups, len(size)
        wide = lambda v: list(v) if isinstance(v, tuple) else [v] * rank
        kernel = wide(kernel)
        self.stride, self.padding, self.dilation = wide(stride), wide(padding), wide(dilation)
        self.output_padding = wide(output_padding)
        self.x_shape = (batch, channels_in, *size)
        first, second = (channels_in, channels_out) if transposed else (channels_out, channels_in)
        self.w_shape = (first, second // groups, *kernel)

    def prepare(self, halo):
        torch.manual_seed(1)
        self.x, self.w = torch.randn(self.x_shape), torch.randn(self.w_shape)
        self.g = torch.randn_like(self.run("forward"))
        text = lambda values: ",".join(map(str, values))
        metadata = {"transposed": str(int(self.transposed)), "groups": str(self.groups), "stride": text(self.stride),
                    "padding": text(self.padding), "dilation": text(self.dilation), "output_padding": text(self.output_padding)}
        write_safetensors(os.path.join(halo.folder, self.name + ".safetensors"), {"x": self.x, "w": self.w, "g": self.g}, metadata)
        halo.order("conv", self.name)

    def release(self):
        self.x = self.w = self.g = None

    def run(self, which):
        sizes = (self.stride, self.padding, self.dilation, self.transposed, self.output_padding, self.groups)
        if which == "forward":
            return torch.convolution(self.x, self.w, None, *sizes)
        mask = (which == "backward_input", which == "backward_weight", False)
        return torch.ops.aten.convolution_backward(self.g, self.x, self.w, None, *sizes, mask)[mask.index(True)]

    passes = PASSES

    def error(self, halo, outputs):
        results = halo.results(self.name)
        return max(float((results[p] - outputs[p]).norm() / outputs[p].norm()) for p in self.passes), CONV_BOUND


CONVS = [
    Conv("conv1d", 16, 64, 128, (1000,), 9, padding=4),
    Conv("conv1d_strided", 16, 32, 64, (4000,), 7, stride=2, padding=3),
    Conv("conv1d_dilated", 8, 64, 64, (2000,), 3, padding=4, dilation=4),
    Conv("conv1d_depthwise", 16, 256, 256, (1024,), 3, padding=2, groups=256),
    Conv("conv1d_groups8", 16, 128, 128, (1024,), 5, padding=2, groups=8),
    Conv("conv1d_transposed", 8, 64, 32, (500,), 8, stride=4, padding=2, transposed=True),
    Conv("conv2d_stem11", 8, 3, 64, (224, 224), 11, stride=4, padding=2),
    Conv("conv2d_5x5", 8, 64, 192, (27, 27), 5, padding=2),
    Conv("conv2d_3x3", 8, 64, 64, (56, 56), 3, padding=1),
    Conv("conv2d_3x3_deep", 16, 256, 256, (14, 14), 3, padding=1),
    Conv("conv2d_1x1", 8, 256, 64, (28, 28), 1),
    Conv("conv2d_strided", 8, 64, 128, (56, 56), 3, stride=2, padding=1),
    Conv("conv2d_depthwise", 8, 128, 128, (56, 56), 3, padding=1, groups=128),
    Conv("conv2d_depthwise_strided", 8, 96, 96, (57, 57), 5, stride=2, padding=2, groups=96),
    Conv("conv2d_groups8", 8, 128, 128, (28, 28), 3, padding=1, groups=8),
    Conv("conv2d_transposed", 8, 64, 32, (28, 28), 4, stride=2, padding=1, transposed=True),
    Conv("conv2d_transposed_groups4", 8, 64, 64, (19, 19), 3, stride=2, padding=1, groups=4, transposed=True, output_padding=1),
    Conv("conv3d_3x3x3", 2, 16, 32, (16, 32, 32), 3, padding=1),
    Conv("conv3d_depthwise", 2, 64, 64, (8, 28, 28), 3, padding=1, groups=64),
    Conv("conv3d_transposed", 2, 32, 16, (8, 16, 16), (3, 5, 5), stride=2, padding=(1, 2, 2), transposed=True, output_padding=1),
]


class Training:
    """A model that starts from the weights of Halo's, and the same batch."""

    passes = ("step",)

    def __init__(self, name, build, optimizer):
        self.name, self.build, self.make_optimizer = name, build, optimizer

    def prepare(self, halo):
        halo.order(self.name)
        state = read_safetensors(os.path.join(halo.folder, self.name + ".safetensors"))
        self.x, self.target = state.pop("x"), state.pop("target")
        self.model = self.build(state)
        self.optimizer = self.make_optimizer(self.model.parameters())

    def release(self):
        self.model = self.optimizer = None

    def run(self, which):
        loss = F.cross_entropy(self.model(self.x).flatten(0, -2), self.target.flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def error(self, halo, outputs):
        """Both made the same number of steps: the last loss must agree."""
        loss = halo.results(self.name)["step"]
        return float(abs(loss - outputs["step"]) / outputs["step"]), LOSS_BOUND


def load(module, state, names):
    """Copies state[theirs] into the parameter or buffer `ours`, for all (ours, theirs) of `names`; nothing may be left."""
    own = dict(module.named_parameters())
    with torch.no_grad():
        for ours, theirs in names:
            own.pop(ours).copy_(state[theirs])
    assert not own, f"not loaded: {list(own)}"


def alexnet(state):
    model = torch_models.alexnet()
    for layer in model:
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    # The pooling to 6x6 that torchvision has; inputs of 224 do not need it.
    pool_at = next(i for i, layer in enumerate(model) if isinstance(layer, nn.Flatten))
    layers = [(f"{i}", layer) for i, layer in enumerate(model) if isinstance(layer, (nn.Conv2d, nn.Linear))]
    theirs = [f"features.{i}" for i in (0, 3, 6, 8, 10)] + [f"classifier.{i}" for i in (1, 4, 6)]
    load(model, state, [(f"{own}.{part}", f"{name}.{part}") for (own, _), name in zip(layers, theirs) for part in ("weight", "bias")])
    model.insert(pool_at, nn.AdaptiveAvgPool2d(6))
    return model


def hyena(state):
    width, layers, length = 64, 2, 1024
    model = torch_models.hyena_lm(width, layers, length)
    both = lambda own, theirs: [(f"{own}.{part}", f"{theirs}.{part}") for part in ("weight", "bias")]
    names = [("0.weight", "backbone.embeddings.word_embeddings.weight"), (f"{layers + 2}.weight", "lm_head.weight")]
    names += both(f"{layers + 1}", "backbone.ln_f")
    for i in range(layers):
        own, theirs = f"{i + 1}", f"backbone.layers.{i}"
        mixer, filter_fn = f"{theirs}.mixer", f"{theirs}.mixer.filter_fn"
        names += both(f"{own}.norms.0", f"{theirs}.norm1") + both(f"{own}.norms.1", f"{theirs}.norm2")
        names += both(f"{own}.mlp.0", f"{theirs}.mlp.fc1") + both(f"{own}.mlp.2", f"{theirs}.mlp.fc2")
        names += both(f"{own}.mixer.inner", f"{mixer}.in_proj") + both(f"{own}.mixer.outer", f"{mixer}.out_proj")
        names += both(f"{own}.mixer.short", f"{mixer}.short_filter")
        for j in range(3):
            names += both(f"{own}.mixer.hidden.{j}", f"{filter_fn}.implicit_filter.{2 * j}")
        names += [(f"{own}.mixer.last.weight", f"{filter_fn}.implicit_filter.6.weight"),
                  (f"{own}.mixer.frequency", f"{filter_fn}.implicit_filter.1.freq"), (f"{own}.mixer.skip", f"{filter_fn}.bias")]
        buffers = model[i + 1].mixer
        buffers.embedding = state[f"{filter_fn}.pos_emb.z"][0]
        time_axis = state[f"{filter_fn}.pos_emb.t"][0]
        buffers.window = torch.exp(-time_axis * state[f"{filter_fn}.modulation.deltas"][0].abs())
    load(model, state, names)
    return model


TRAININGS = [
    Training("alexnet", alexnet, lambda p: torch.optim.SGD(p, 0.01, momentum=0.9)),
    Training("hyena", hyena, lambda p: torch.optim.AdamW(p, 6e-4, weight_decay=0.01)),
]


def time_torch(case, which, count):
    times = []
    for _ in range(count):
        start = time.perf_counter()
        output = case.run(which)
        times.append(1e3 * (time.perf_counter() - start))
    return times, output


def measure(case, halo, turns):
    """Medians in ms of both sides for every pass, and how far their results are apart."""
    case.prepare(halo)
    row, outputs = {"case": case.name}, {}
    for which in case.passes:
        first = halo.run(which, 1)[0]
        outputs[which] = case.run(which)
        count = max(1, min(20, round(30 / max(first, 0.1))))
        halo_ms, torch_ms = [], []
        for _ in range(turns):
            halo_ms += halo.run(which, 1 + count)[1:]
            time.sleep(0.005)
            times, outputs[which] = time_torch(case, which, 1 + count)
            torch_ms += times[1:]
            time.sleep(0.005)
        row[which] = {"halo_ms": statistics.median(halo_ms), "torch_ms": statistics.median(torch_ms)}
    row["error"], bound = case.error(halo, outputs)
    if not row["error"] <= bound:
        raise SystemExit(f"{case.name}: results differ by {row['error']:.3g}, bound {bound:.3g}")
    case.release()
    sums = [sum(row[p][side] for p in case.passes) for side in ("halo_ms", "torch_ms")]
    row["ratio"] = sums[0] / sums[1]
    return row


def rounded(value):
    if isinstance(value, dict):
        return {key: rounded(v) for key, v in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def machine():
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown")
    return {"cpu": model, "cores": sorted(os.sched_getaffinity(0)), "isa": torch.backends.cpu.get_cpu_capability()}


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(v) for v in values))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="halo_bench_cpu")
    parser.add_argument("--only", action="append", default=[], help="parts of names of cases")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--compiler", default="unknown")
    parser.add_argument("--json", help="file for the figures")
    arguments = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        halo = Halo(arguments.program, folder, threads)
        for case in TRAININGS + CONVS:
            if arguments.only and not any(part in case.name for part in arguments.only):
                continue
            rows.append(rounded(measure(case, halo, arguments.turns)))
            times = "  ".join(f"{p} {rows[-1][p]['halo_ms']:g}/{rows[-1][p]['torch_ms']:g}" for p in case.passes)
            print(f"{case.name:26} {rows[-1]['ratio']:5.2f}  {times}  error {rows[-1]['error']:.1e}", flush=True)
        halo.process.stdin.close()
    convs = [row["ratio"] for row in rows if "forward" in row]
    summary = {row["case"]: row["ratio"] for row in rows if "step" in row}
    if convs:
        summary |= {"convolutions_geometric_mean": geometric_mean(convs), "convolutions_worst": max(convs)}
    summary = rounded(summary)
    print(json.dumps(summary))
    if arguments.json:
        about = "medians in ms, Halo and PyTorch in turn on the same cores; ratio: Halo's time over PyTorch's, passes summed"
        table = {"about": about, "machine": machine(), "threads": threads, "commit": arguments.commit, "pytorch": torch.__version__,
                 "compiler": arguments.compiler, "summary": summary}
        with open(arguments.json, "w") as file:
            lines = ",\n".join("  " + json.dumps(row) for row in rows)
            file.write(json.dumps(table, indent=1)[:-2] + ',\n "rows": [\n' + lines + "\n ]\n}\n")


if __name__ == "__main__":
    main()
