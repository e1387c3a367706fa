#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch as the peer of `dropless bench` on a GPU.

    dropless bench -i cuda --peer "python3 scripts/torch_peer.py"

Speaks the line protocol of conformance/benchmarks/device/peer.h: one line for each request, with
the median of its repetitions in microseconds, or "none: <why>". A batch of calls, over as many sets
of random buffers as it is told, is captured in a graph where that works and enqueued directly
otherwise; the answer says which. The layer always runs as users run it: eager, with autograd.
Alone: echo "swiglu rows=32768 width=2048" | python3 scripts/torch_peer.py
"""
import os
import statistics
import sys
import time

# Libraries print; only answers may go to standard output.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

LEAST_US = 2000  # of a repetition


def answer(text):
    answers.write(" ".join(text.split()) + "\n")
    answers.flush()


try:
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no GPU")
except Exception as error:  # pylint: disable=broad-except
    answer(f"none: {error}")
    sys.exit(0)

bf16, fp32 = torch.bfloat16, torch.float32


def normal(*shape, dtype=bf16, scale=1.0):
    # Drawn in the wanted type: a weight of 256 experts would need twice its memory in fp32.
    return torch.randn(*shape, device="cuda", dtype=dtype).mul_(scale)


class Case:
    """Bodies (one for each set of buffers), how they run, and whether a graph may be tried."""

    def __init__(self, how, bodies, graph=True):
        self.how, self.bodies, self.graph = how, bodies, graph


def route(sets, tokens, experts, top_k):
    def make():
        logits = normal(tokens, experts, dtype=fp32, scale=1.5)
        bias = normal(experts, dtype=fp32, scale=0.1)
        ones = torch.ones(tokens * top_k, device="cuda", dtype=torch.int64)

        def body():
            scores = torch.sigmoid(logits)
            ids = torch.topk(scores + bias, top_k, dim=-1, sorted=True).indices
            weights = scores.gather(1, ids)
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * 2.5
            # Without bincount, which waits for the device.
            counts = torch.zeros(experts, device="cuda", dtype=torch.int64)
            counts.scatter_add_(0, ids.flatten(), ones)
            return ids, weights, counts

        return body

    return Case("eager", [make() for _ in range(sets)])


def plan(tokens, experts, top_k):
    """Random experts of every token: rows sorted by expert, and where each pair's row is."""
    ids = torch.rand(tokens, experts, device="cuda").topk(top_k, dim=-1).indices
    order = ids.flatten().argsort(stable=True)
    row_map = torch.empty_like(order)
    row_map[order] = torch.arange(tokens * top_k, device="cuda")
    return order // top_k, row_map


def permute(sets, tokens, experts, top_k, hidden):
    def make():
        source, _ = plan(tokens, experts, top_k)
        x = normal(tokens, hidden)
        return lambda: x.index_select(0, source)

    return Case("eager", [make() for _ in range(sets)])


def unpermute(sets, tokens, experts, top_k, hidden):
    def make():
        _, row_map = plan(tokens, experts, top_k)
        rows = normal(tokens * top_k, hidden)
        weights = normal(tokens, top_k, dtype=fp32)

        def body():
            gathered = rows.index_select(0, row_map).view(tokens, top_k, hidden)
            return (gathered * weights.unsqueeze(-1)).sum(1).to(bf16)

        return body

    return Case("eager", [make() for _ in range(sets)])


def quantize_rows(x):
    """MXFP8: blocks of 32 along the row, scale 2^ceil(log2(amax / 448)), saturating E4M3."""
    blocks = x.view(x.shape[0], -1, 32).float()
    amax = blocks.abs().amax(-1, keepdim=True)
    bits = (amax / 448.0).view(torch.int32)
    exponent = (bits >> 23 & 255) + ((bits & 0x7FFFFF) != 0).int()
    exponent = exponent.clamp(1, 254)
    inverse = ((254 - exponent) << 23).view(fp32)
    codes = (blocks * inverse).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return codes.view(x.shape), exponent.to(torch.uint8).squeeze(-1)


def quantize_row(sets, rows, columns):
    compiled = torch.compile(quantize_rows)

    def make():
        x = normal(rows, columns)
        return lambda: compiled(x)

    return Case("torch.compile, rows only", [make() for _ in range(sets)])


def swiglu(sets, rows, width):
    def plain(x):
        gate, up = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    compiled = torch.compile(plain)

    def make():
        x = normal(rows, 2 * width, scale=2.0)
        return lambda: compiled(x)

    return Case("torch.compile", [make() for _ in range(sets)])


def grouped(sets, counts, make_one):
    ends = torch.tensor(counts, device="cuda").cumsum(0).to(torch.int32)
    return Case("_grouped_mm", [make_one(ends) for _ in range(sets)])


def gemm_fprop(sets, out, **sizes):
    inner, counts = sizes["in"], sizes["counts"]

    def make(ends):
        x = normal(sum(counts), inner)
        w = normal(len(counts), out, inner, scale=inner**-0.5).transpose(1, 2)
        return lambda: torch._grouped_mm(x, w, offs=ends)

    return grouped(sets, counts, make)


def gemm_dgrad(sets, out, **sizes):
    inner, counts = sizes["in"], sizes["counts"]

    def make(ends):
        dy = normal(sum(counts), out)
        w = normal(len(counts), out, inner, scale=out**-0.5)
        return lambda: torch._grouped_mm(dy, w, offs=ends)

    return grouped(sets, counts, make)


def gemm_wgrad(sets, out, **sizes):
    inner, counts = sizes["in"], sizes["counts"]

    def make(ends):
        dy, x = normal(sum(counts), out), normal(sum(counts), inner)
        return lambda: torch._grouped_mm(dy.t(), x, offs=ends)

    return grouped(sets, counts, make)


def layer(sets, tokens, top_k, experts, hidden, intermediate, backward):
    del sets  # one: its weights are many times larger than the cache
    router = normal(experts, hidden, scale=hidden**-0.5).requires_grad_()
    gate_up = normal(experts, 2 * intermediate, hidden, scale=hidden**-0.5).requires_grad_()
    down = normal(experts, hidden, intermediate, scale=intermediate**-0.5).requires_grad_()
    x = normal(tokens, hidden).requires_grad_()
    d_y = normal(tokens, hidden)

    def forward():
        scores = torch.sigmoid((x @ router.t()).float())
        weights, ids = scores.topk(top_k, dim=-1)
        weights = 2.5 * weights / (weights.sum(-1, keepdim=True) + 1e-20)
        order = ids.flatten().argsort(stable=True)
        counts = torch.bincount(ids.flatten(), minlength=experts)
        ends = counts.cumsum(0).to(torch.int32)
        source = order // top_k
        rows = x[source]
        gate, up = torch._grouped_mm(rows, gate_up.transpose(1, 2), offs=ends).chunk(2, dim=-1)
        hidden_rows = torch.nn.functional.silu(gate) * up
        out = torch._grouped_mm(hidden_rows, down.transpose(1, 2), offs=ends)
        weighted = out.float() * weights.flatten()[order, None]
        y = torch.zeros(tokens, hidden, device="cuda").index_add_(0, source, weighted)
        return y.to(bf16)

    def only_forward():
        with torch.no_grad():
            forward()

    def both():
        for parameter in (router, gate_up, down, x):
            parameter.grad = None
        forward().backward(d_y)

    return Case("eager, _grouped_mm", [both if backward else only_forward], graph=False)


OPERATIONS = {
    made.__name__: made
    for made in (route, permute, unpermute, quantize_row, swiglu, gemm_fprop, gemm_dgrad, gemm_wgrad,
                 layer)
}


class Prepared:
    """A case, warm, in batches that last as long as a repetition shall."""

    def __init__(self, case):
        self.case = case
        for _ in range(3):
            self.round()
        torch.cuda.synchronize()
        rounds = max(1, min(64, round(LEAST_US / max(self.timed(self.round), 1.0) + 0.5)))
        self.calls = rounds * len(case.bodies)

        def direct():
            for _ in range(rounds):
                self.round()

        self.enqueue, self.how = direct, "queue"
        if case.graph:
            try:
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph):
                    direct()
                self.enqueue, self.how = self.graph.replay, "graph"
            except Exception:  # pylint: disable=broad-except
                torch.cuda.synchronize()
        self.enqueue()
        torch.cuda.synchronize()

    def round(self):
        for body in self.case.bodies:
            body()

    @staticmethod
    def timed(body):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        body()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e3

    def median_us(self, repetitions, rest_us):
        self.enqueue()
        times = []
        for _ in range(repetitions):
            torch.cuda.synchronize()
            if rest_us > 0:
                time.sleep(rest_us * 1e-6)
            times.append(self.timed(self.enqueue) / self.calls)
        return statistics.median(times)


def parse(line):
    name, *pairs = line.split()
    values = {}
    for pair in pairs:
        key, _, text = pair.partition("=")
        values[key] = [int(n) for n in text.split(",")] if key == "counts" else int(text)
    return name, values


def main():
    answer(f"ready torch {torch.__version__}, CUDA {torch.version.cuda}, "
           f"{torch.cuda.get_device_name()}")
    torch.manual_seed(1)
    last, prepared = None, None
    for line in sys.stdin:
        if not line.strip():
            continue
        try:
            name, values = parse(line)
            repetitions, rest_us = values.pop("repetitions", 11), values.pop("rest_us", 0)
            values.setdefault("sets", 2)
            if name not in OPERATIONS:
                answer(f"none: torch_peer.py has no operation {name}")
                continue
            # The turns of one benchmark share what was prepared; nothing else stays in memory.
            if (name, values) != last:
                last, prepared = None, None
                torch.cuda.empty_cache()
                prepared = Prepared(OPERATIONS[name](**values))
                last = (name, values)
            answer(f"{prepared.median_us(repetitions, rest_us):.3f} {prepared.case.how}, {prepared.how}")
        except Exception as error:  # pylint: disable=broad-except
            last, prepared = None, None
            answer(f"none: {type(error).__name__}: {str(error)[:300]}")


if __name__ == "__main__":
    main()
