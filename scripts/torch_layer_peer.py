#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The layer of tests/cuda/layer_time.cu in eager PyTorch with torch._grouped_mm: medians of 11."""
import sys

import torch

tokens, hidden, intermediate, experts, top_k = 4096, 7168, 2048, 32, 8
if len(sys.argv) > 1:
    tokens = int(sys.argv[1])
torch.manual_seed(1)


def random(*shape, scale):
    tensor = torch.randn(*shape, device="cuda", dtype=torch.bfloat16).mul_(scale)
    return tensor.requires_grad_()


router = random(experts, hidden, scale=hidden**-0.5)
gate_up = random(experts, 2 * intermediate, hidden, scale=hidden**-0.5)
down = random(experts, hidden, intermediate, scale=0.03)
x = random(tokens, hidden, scale=1.0)
d_y = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16)


def layer(x):
    scores = torch.sigmoid((x @ router.t()).float())
    weights, ids = scores.topk(top_k, dim=-1)
    weights = 2.5 * weights / (weights.sum(-1, keepdim=True) + 1e-20)
    order = ids.flatten().argsort(stable=True)
    counts = torch.bincount(ids.flatten(), minlength=experts)
    ends = counts.cumsum(0).to(torch.int32)
    source = order // top_k
    rows = x[source]
    gate, up = torch._grouped_mm(rows, gate_up.transpose(1, 2), offs=ends).chunk(2, dim=-1)
    out = torch._grouped_mm(torch.nn.functional.silu(gate) * up, down.transpose(1, 2), offs=ends)
    weighted = out.float() * weights.flatten()[order, None]
    y = torch.zeros(tokens, hidden, device="cuda").index_add_(0, source, weighted)
    return y.to(torch.bfloat16)


def timed(name, body, passes):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for i in range(14):
        begin.record()
        body()
        end.record()
        torch.cuda.synchronize()
        if i >= 3:
            times.append(begin.elapsed_time(end))
    median = sorted(times)[len(times) // 2]
    flops = passes * 6 * tokens * top_k * hidden * intermediate
    print(f"{name:28} {median:8.3f} ms  {flops / median * 1e-9:6.1f} TFLOP/s of expert products")


def forward():
    with torch.no_grad():
        layer(x)


def both():
    for parameter in (router, gate_up, down, x):
        parameter.grad = None
    layer(x).backward(d_y)


print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, bf16, T={tokens}")
timed("forward", forward, 1)
timed("forward + backward", both, 3)
