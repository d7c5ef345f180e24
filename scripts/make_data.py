#!/usr/bin/env python3
"""Makes examples/data from Debian's dataset-fashion-mnist, bowtie-examples and bowtie2-examples packages."""
import gzip
import pathlib
import struct

OUT = pathlib.Path(__file__).resolve().parent.parent / "examples" / "data"
FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")
ECOLI = pathlib.Path("/usr/share/doc/bowtie/examples/genomes/NC_008253.fna.gz")
LAMBDA = pathlib.Path("/usr/share/doc/bowtie2/examples/reference/lambda_virus.fa.gz")


def write_gzip(name, content):
    with open(OUT / name, "wb") as f, gzip.GzipFile("", "wb", 9, f, mtime=0) as z:
        z.write(content)


def head_of_idx(source, target, count):
    raw = gzip.open(FASHION / source).read()
    axes = raw[3]
    extents = struct.unpack(f">{axes}I", raw[4 : 4 + 4 * axes])
    size = 1
    for e in extents[1:]:
        size *= e
    start = 4 + 4 * axes
    write_gzip(target, raw[:4] + struct.pack(f">{axes}I", count, *extents[1:]) + raw[start : start + count * size])


def two_bit(source, target):
    opener = gzip.open if source.suffix == ".gz" else open
    text = opener(source, "rt").read()
    bases = "".join(line.strip().upper() for line in text.splitlines() if not line.startswith(">"))
    codes = [b"ACGT".find(b) for b in bases.encode()]
    assert min(codes) >= 0, "only A, C, G, T"
    codes += [0] * (-len(codes) % 4)
    packed = bytes(codes[i] | codes[i + 1] << 2 | codes[i + 2] << 4 | codes[i + 3] << 6 for i in range(0, len(codes), 4))
    (OUT / target).write_bytes(b"HALO2BIT" + struct.pack("<Q", len(bases)) + packed)


OUT.mkdir(parents=True, exist_ok=True)
head_of_idx("train-images-idx3-ubyte.gz", "fashion-train-images.gz", 5000)
head_of_idx("train-labels-idx1-ubyte.gz", "fashion-train-labels.gz", 5000)
head_of_idx("t10k-images-idx3-ubyte.gz", "fashion-test-images.gz", 1500)
head_of_idx("t10k-labels-idx1-ubyte.gz", "fashion-test-labels.gz", 1500)
two_bit(ECOLI, "ecoli.2bit")
two_bit(LAMBDA if LAMBDA.exists() else LAMBDA.with_suffix(""), "lambda.2bit")
