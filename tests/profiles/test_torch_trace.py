"""Profiler traces against sums done by hand, and against HolisticTraceAnalysis where installed."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_vpp.errors import InputError
from vllm_vpp.profiles import in_order, profile, trace_of
from vllm_vpp.profiles.breakdown import PARTS
from vllm_vpp.profiles.operators import OperatorGroup, group_of

G = OperatorGroup


def kernel(name: str, start: float, lasts: float, stream: int = 7, cat: str = "kernel") -> Any:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": start,
        "dur": lasts,
        "args": {"stream": stream, "device": 0, "correlation": round(start * 10) + stream},
    }


def launch(of: Any) -> Any:
    """The host's call that belongs to a kernel."""
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": 99,
        "tid": 99,
        "ts": of["ts"] - 3,
        "dur": 1,
        "args": {"correlation": of["args"]["correlation"]},
    }


KERNELS = [
    kernel("ampere_bf16_s16816gemm_bf16_128x128", 100, 40),
    kernel("flash_fwd_splitkv_kernel", 150, 30),
    kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 170, 40, stream=20),
    kernel("Memcpy DtoD (Device -> Device)", 205, 15, stream=21, cat="gpu_memcpy"),
    kernel("void vllm::rms_norm_kernel<c10::BFloat16>", 230, 10),
]


def document(events: list[Any], rank: int | None = 0, base: int = 0) -> dict[str, Any]:
    info = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}
    return {**info, "baseTimeNanoseconds": base, "traceEvents": events}


def test_one_rank_by_hand() -> None:
    """W [100, 240]: compute 80, communication 40 of which 10 beside attention, a copy 10 alone."""
    found = profile("x", [trace_of("r0", document([*KERNELS, *map(launch, KERNELS)]))])
    (rank,) = found.ranks
    us = {
        part: getattr(rank, part) * 1e6 for part in (*PARTS, "transfer", "overlapped", "makespan")
    }
    assert us == pytest.approx(
        {
            "compute": 80,
            "exposed": 30,
            "copies": 10,
            "idle": 20,
            "transfer": 40,
            "overlapped": 10,
            "makespan": 140,
        }
    )
    assert rank.overlap_ratio == pytest.approx(0.25)
    groups = {group: (time.seconds * 1e6, time.calls) for group, time in rank.groups.items()}
    assert groups == {
        G.MATMUL: (pytest.approx(40), 1),
        G.ATTENTION: (pytest.approx(30), 1),
        G.COMMUNICATION: (pytest.approx(40), 1),
        G.COPY: (pytest.approx(15), 1),
        G.NORM: (pytest.approx(10), 1),
        G.MOE: (0, 0),
        G.OTHER: (0, 0),
    }


def test_ranks_share_one_window_if_their_clocks_do() -> None:
    first = trace_of("a", document([kernel("gemm", 0, 50)], rank=0, base=1_000))
    second = trace_of("b", document([kernel("gemm", 30, 70)], rank=1, base=1_000))
    shared = profile("x", in_order([second, first]))
    assert [r.rank for r in shared.ranks] == [0, 1]
    assert [r.idle * 1e6 for r in shared.ranks] == pytest.approx([50, 30])
    later = trace_of("b", document([kernel("gemm", 30, 70)], rank=1, base=10**12))
    apart = profile("x", [first, later])
    assert not apart.one_window
    assert [r.idle for r in apart.ranks] == [0, 0]


def operator(name: str, start: float, lasts: float, tid: int = 1) -> Any:
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "pid": 5,
        "tid": tid,
        "ts": start,
        "dur": lasts,
    }


def test_on_a_cpu_time_belongs_to_the_outermost_known_operator() -> None:
    events = [
        operator("model", 0, 100),
        operator("vllm::unified_attention_with_output", 10, 40),
        operator("aten::copy_", 20, 10),
        operator("aten::linear", 60, 30),
        operator("aten::addmm", 65, 20),
        operator("gloo:send", 40, 30, tid=2),
    ]
    trace = trace_of("r", document(events))
    assert not trace.on_device
    (rank,) = profile("x", [trace]).ranks
    assert {g: round(t.seconds * 1e6) for g, t in rank.groups.items() if t.seconds} == {
        G.ATTENTION: 40,
        G.MATMUL: 30,
        G.OTHER: 30,
        G.COMMUNICATION: 30,
    }
    assert {g: t.calls for g, t in rank.groups.items() if t.calls} == {
        G.ATTENTION: 1,
        G.MATMUL: 1,
        G.OTHER: 1,
        G.COMMUNICATION: 1,
    }
    assert rank.overlap_ratio == pytest.approx(1.0)
    assert rank.compute * 1e6 == pytest.approx(100)


NAMES = {
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL": G.COMMUNICATION,
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>": G.COMMUNICATION,
    "c10d::send": G.COMMUNICATION,
    "fused_moe_kernel": G.MOE,
    "void vllm::moe::topkGatingSoftmax<4, 128>": G.MOE,
    "vllm::unified_attention_with_output": G.ATTENTION,
    "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits>": G.ATTENTION,
    "_C_cache_ops::reshape_and_cache_flash": G.ATTENTION,
    "_C::fused_add_rms_norm": G.NORM,
    "aten::native_layer_norm": G.NORM,
    "aten::linear": G.MATMUL,
    "aten::addmm": G.MATMUL,
    "aten::mm": G.MATMUL,
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT": G.MATMUL,
    "sm90_xmma_gemm_bf16bf16": G.MATMUL,
    "aten::slice": G.COPY,
    "aten::copy_": G.COPY,
    "Memcpy HtoD (Pinned -> Device)": G.COPY,
    "aten::cat": G.COPY,
    "void at::native::index_elementwise_kernel<128, 4>": G.COPY,
    "aten::silu": G.OTHER,
    "_C::rotary_embedding": G.OTHER,
    "aten::normal_": G.OTHER,
    "aten::empty": G.OTHER,
}


@pytest.mark.parametrize(("name", "group"), NAMES.items(), ids=NAMES.keys())
def test_names_fall_into_their_groups(name: str, group: OperatorGroup) -> None:
    assert group_of(name) is group


names = st.sampled_from(["gemm", "ncclKernel", "flash_attn", "aten::silu", "aten::copy_"])
timed = st.builds(
    kernel,
    *(names, st.integers(0, 200), st.integers(1, 40), st.integers(1, 3)),
    cat=st.sampled_from(["kernel", "gpu_memcpy"]),
)
hosted = st.builds(operator, names, st.integers(0, 200), st.integers(1, 40), st.integers(1, 3))


@given(events=st.one_of(*(st.lists(e, min_size=1, max_size=30) for e in (timed, hosted))))
def test_parts_sum_to_the_window_on_every_rank(events: list[Any]) -> None:
    (rank,) = profile("x", [trace_of("r", document(events))]).ranks
    assert sum(getattr(rank, part) for part in PARTS) == pytest.approx(rank.makespan)
    assert rank.overlapped + rank.exposed == pytest.approx(rank.transfer)
    if not rank.on_device:  # a thread is in one operator at a time, so groups lose nothing
        threads = {e["tid"] for e in events}
        assert sum(t.seconds for t in rank.groups.values()) <= rank.makespan * len(threads) + 1e-12


@pytest.mark.parametrize(
    ("data", "fragment"),
    [
        ([], "no traceEvents"),
        ({"traceEvents": [{"ph": "X", "cat": "cuda_runtime", "ts": 0, "dur": 1}]}, "no kernels"),
        ({"traceEvents": [{"ph": "X", "cat": "kernel", "ts": "0", "dur": None}, 7]}, "no kernels"),
    ],
)
def test_what_is_no_trace_is_refused(data: Any, fragment: str) -> None:
    with pytest.raises(InputError, match=fragment):
        trace_of("file", data)


def test_two_files_of_one_rank_are_refused() -> None:
    twice = [trace_of(name, document(KERNELS, rank=3)) for name in ("a", "b")]
    with pytest.raises(InputError, match="a, b: all of rank 3"):
        in_order(twice)


@pytest.mark.filterwarnings("ignore")  # of that package and of pandas
def test_holistic_trace_analysis_finds_the_same(tmp_path: Path) -> None:
    from hta import trace_analysis  # type: ignore[import-untyped]

    events = [*KERNELS, *map(launch, KERNELS)]
    (tmp_path / "rank0.json").write_text(json.dumps(document(events)))
    (ours,) = profile("x", [trace_of("r0", document(events))]).ranks
    theirs = trace_analysis.TraceAnalysis(trace_dir=str(tmp_path))
    parts = theirs.get_temporal_breakdown(visualize=False).iloc[0]
    assert parts["compute_time(us)"] == pytest.approx(ours.compute * 1e6)
    assert parts["idle_time(us)"] == pytest.approx(ours.idle * 1e6)
    assert parts["non_compute_time(us)"] == pytest.approx((ours.exposed + ours.copies) * 1e6)
    overlap = theirs.get_comm_comp_overlap(visualize=False).iloc[0]["comp_comm_overlap_pctg"]
    assert ours.overlap_ratio is not None
    assert overlap == pytest.approx(ours.overlap_ratio * 100, abs=0.01)
