#!/usr/bin/env python3
"""Names public functions and modules that docs/from_pytorch.md does not have, and those that it wrongly says are missing; exits
with 1 if there are any."""
import os
import re
import sys

TAPE = {"engine", "grad_mode", "gradcheck", "node", "composed", "checkpoint", "function", "hook_list", "saved_slot"}
# Helpers that only authors of functions call.
INTERNAL = {"has_derivative_of_result", "activation_backward"}


def declared(path, pattern):
    text = open(path).read()
    return {next(group for group in match.groups() if group) for match in re.finditer(pattern, text, re.M)}


def public_names():
    function = r"^(?:template <class T>\n)?(?:Tensor|StateDict|\w+Output|\w+Result|std::vector<Tensor>) (\w+)\("
    names = set()
    for header in sorted(os.listdir("autograd")):
        if header.endswith(".h") and header[:-2] not in TAPE:
            names |= declared(f"autograd/{header}", function)
    for header in ["core/tensor.h", "core/generator.h", "core/state_dict.h", "ops/multinomial.h"]:
        names |= declared(header, function)
    for header in ["conv", "init", "layers", "norm", "pool"]:
        names |= declared(f"nn/{header}.h", r"^using (\w+) = |^class (\w+) : public|^const Tensor& (\w+)\(")
    names |= declared("nn/module.h", r"^class (\w+) : public")
    for header in sorted(os.listdir("optim")):
        if header.endswith(".h"):
            names |= declared(f"optim/{header}", r"^class (\w+)|^(?:Tensor|void|Schedule) (\w+)\(")
    # A template over the number of axes has its names by `using`.
    templates = {"Conv", "ConvTranspose", "MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool", "BatchNorm"}
    return names - templates - INTERNAL


def names_in(page):
    names = set()
    for code in re.findall(r"`([^`]+)`", page):
        axes = re.search(r"\{([\d,]+)\}", code)
        for spelled in [code.replace(axes[0], n) for n in axes[1].split(",")] if axes else [code]:
            names |= set(re.findall(r"\w+", spelled))
    return names


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    here, absent = open("docs/from_pytorch.md").read().split("## What is not there")
    missing = sorted(public_names() - names_in(here))
    if missing:
        print("docs/from_pytorch.md lacks", ", ".join(missing))
    # What takes a missing function's place stands in parentheses behind it.
    stale = sorted(public_names() & names_in(re.sub(r" \([^()]*(\([^()]*\)[^()]*)*\)", "", absent)))
    if stale:
        print("docs/from_pytorch.md says that these are missing, but they are there:", ", ".join(stale))
    return 1 if missing or stale else 0


if __name__ == "__main__":
    sys.exit(main())
