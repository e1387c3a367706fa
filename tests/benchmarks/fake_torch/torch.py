# SPDX-License-Identifier: Apache-2.0
"""As much of PyTorch as scripts/torch_peer.py touches: every interval is one millisecond, graphs and
grouped products are refused. With FAKE_TORCH=missing it cannot be imported."""
import os

if os.environ.get("FAKE_TORCH") == "missing":
    raise ImportError("No module named 'torch'")

__version__ = "of a test"
bfloat16, float32, int32, int64 = range(4)


class Tensor:
    def __getattr__(self, name):
        return self if name == "indices" else lambda *_, **__: self

    def __setitem__(self, *_):
        pass

    def __floordiv__(self, _):
        return self


class Event:
    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        print("a library that prints")

    def elapsed_time(self, _):
        return 1.0


class Refused:
    def __init__(self, _):
        pass

    def __enter__(self):
        raise RuntimeError("no graphs")

    def __exit__(self, *_):
        pass


def made(*_, **__):
    return Tensor()


randn = rand = arange = empty_like = tensor = made


def manual_seed(_):
    pass


def _grouped_mm(*_, **__):
    raise RuntimeError("not on\nthis chip")


class version:
    cuda = "none"


class cuda:
    CUDAGraph = object
    Event = Event
    graph = Refused

    @staticmethod
    def is_available():
        return os.environ.get("FAKE_TORCH") != "without_gpu"

    @staticmethod
    def get_device_name():
        return "a device"

    @staticmethod
    def synchronize():
        pass

    @staticmethod
    def empty_cache():
        pass
