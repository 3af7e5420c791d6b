"""What happens before any process is started: refusals in one line, and a stock vLLM left alone.

Builds vLLM's config in this process, which takes a fraction of a second once vLLM is imported.
"""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_runs import LAYERS, MAX_MODEL_LEN

from vllm_vpp.bench.models import checkpoint, tiny
from vllm_vpp.errors import ConfigError, UnsupportedError
from vllm_vpp.plugin import hooks, register
from vllm_vpp.plugin.hooks import Hook

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(120)]

Build = Callable[..., Any]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("VLLM_HOST_IP", "127.0.0.1")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    monkeypatch.delenv("VLLM_PP_LAYER_PARTITION", raising=False)
    yield
    hooks.uninstall()


def build(**changes: Any) -> Any:
    """The config for a Llama of 11 layers on two ranks; without `vpp` unless `changes` say so."""
    from vllm.engine.arg_utils import EngineArgs

    spec = tiny("llama", layers=LAYERS, max_positions=MAX_MODEL_LEN)
    arguments = {
        "model": str(checkpoint(spec)),
        "dtype": "float32",
        "pipeline_parallel_size": 2,
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "max_num_batched_tokens": 512,
    }
    args = EngineArgs(**(arguments | changes))
    register()  # vLLM does it too, unless its plugins are switched off
    return args.create_engine_config()


def refused(error: type[Exception], *texts: str, **changes: Any) -> str:
    """The one line that refuses these arguments; it contains all texts."""
    with pytest.raises(error) as caught:
        build(**changes)
    message = str(caught.value)
    assert "\n" not in message
    assert message.count(";") >= 1, f"no fix in it: {message}"
    for text in texts:
        assert text in message, message
    return message


def vpp(**settings: Any) -> dict[str, Any]:
    return {"additional_config": {"vpp": settings}}


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("v", ["vpp='v'", "JSON object"]),
        (None, ["vpp=None", "JSON object"]),
        ({"layuot": "v"}, ["layuot", "layout, sweeps, order", "unknown key"]),
        ({"layout": "w"}, ['"w"', "linear, v, wave"]),
        ({"layout": 2}, ["vpp.layout=2", "linear, v, wave"]),
        ({"layout": "wave"}, ["'wave'", '"sweeps": 3']),
        ({"layout": "v", "sweeps": 3}, ["sweeps=3", "wave"]),
        ({"layout": "wave", "sweeps": 0}, ["vpp.sweeps=0", "1 to 16"]),
        ({"layout": "wave", "sweeps": "3"}, ['vpp.sweeps="3"', "whole number"]),
        ({"layout": "wave", "sweeps": True}, ["vpp.sweeps=true", "whole number"]),
        ({"order": "fifo"}, ['"fifo"', "greedy, async, vanilla"]),
        ({"in_flight": 1}, ["vpp.in_flight=1", "2 to 1024"]),
        ({"in_flight": 2.5}, ["vpp.in_flight=2.5", "whole number"]),
        ({"in_flight": 10**9}, ["2 to 1024"]),
        ({"metrics": "no"}, ['vpp.metrics="no"', "true or false"]),
        ({"trace_dir": 3}, ["vpp.trace_dir=3", "path"]),
        ({"trace_dir": "/proc/nowhere/x"}, ["/proc/nowhere/x", "writable folder"]),
        ({"split": "3,3,3,2"}, ["vpp.split", "list of whole numbers"]),
        ({"split": [3, 3, 3, 0]}, ["vpp.split", "at least 1"]),
        ({"split": [3, 3, 3, 3]}, ["3,3,3,3", "sum to 11"]),
        ({"split": [6, 5]}, ["6,5", "4 numbers"]),
        ({"chunking": "fixed"}, ["vpp.chunking", "names a policy"]),
        ({"chunking": {"policy": "magic"}}, ["'magic'", "fixed, equal-time"]),
        ({"chunking": {"policy": "fixed", "chnk": 1}}, ["chnk", "chunk"]),
        ({"chunking": {"policy": "fixed", "chunk": 0}}, ["chunk", "0"]),
        ({"chunking": {"policy": "fixed"}}, ["needs chunk"]),
        ({"itl_target_ms": 0}, ["vpp.itl_target_ms=0", "above 0"]),
        ({"itl_target_ms": -5.0}, ["vpp.itl_target_ms=-5.0", "above 0"]),
        ({"itl_target_ms": "50"}, ['"50"', "milliseconds"]),
        ({"itl_target_ms": True}, ["true", "milliseconds"]),
        ({"itl_target_ms": float("nan")}, ["vpp.itl_target_ms", "milliseconds"]),
        ({"itl_target_ms": 1e9}, ["vpp.itl_target_ms", "at most 3600000"]),
        ({"itl_target_ms": 50, "learn": False}, ["vpp.itl_target_ms=50", '"cost"']),
        ({"itl_target_ms": 50, "cost": {"b": 1, "a": 1}}, ["itl_target_ms=50", "at least that"]),
        ({"cost": {"b": 0, "a": 1}}, ["vpp.cost", "b above 0"]),
        ({"cost": {"b": 1}}, ["vpp.cost", "b above 0"]),
        ({"cost": {"b": 1, "a": 1, "d": 1}}, ["vpp.", "d"]),
        ({"cost": {"b": float("nan"), "a": 1}}, ["vpp.cost"]),
    ],
)
def test_impossible_settings_are_refused(value: object, texts: list[str]) -> None:
    refused(ConfigError, *texts, additional_config={"vpp": value})


@pytest.mark.parametrize("text", ["3,3,3", "3,3,3,3", "0,4,4,3", "3,3,3,x", "3;3;3;2"])
def test_impossible_partition_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", text)
    refused(ConfigError, text, "4 ", **vpp())


def test_partition_has_one_entry_per_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", "5,1,2,3")
    assert build(**vpp()).additional_config["vpp"]["resolved"]["layers"] == [5, 1, 2, 3]


def test_fewer_layers_than_stages_are_refused() -> None:
    refused(ConfigError, "16 stages", "11 layers", **vpp(), pipeline_parallel_size=8)
    build(**vpp(layout="linear"), pipeline_parallel_size=8)


# Arguments that lead to each refusal. Where vLLM itself refuses the argument on a CPU or for this
# model, an attribute of a valid config is changed instead (`ATTRIBUTES`).
ARGUMENTS: dict[str, dict[str, Any]] = {
    "speculative_config": {
        "speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": 2,
            "prompt_lookup_max": 2,
        }
    },
    "async_scheduling": {
        "async_scheduling": True,
        "kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"},
    },
    "data_parallel_size": {"data_parallel_size": 2},
    "cpu_distributed_timeout_seconds": {"cpu_distributed_timeout_seconds": 60},
    "weight_transfer_config": {"weight_transfer_config": {"backend": "nccl"}},
    "enable_prompt_embeds": {"enable_prompt_embeds": True},
    "cpu_offload_gb": {"cpu_offload_gb": 1},
    "kv_transfer_config": {
        "kv_transfer_config": {"kv_connector": "DecodeBenchConnector", "kv_role": "kv_both"}
    },
    "ec_transfer_config": {
        "ec_transfer_config": {"ec_connector": "ECExampleConnector", "ec_role": "ec_both"}
    },
}
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "model runner": {"use_v2_model_runner": True},
    "runner": {"model_config.runner_type": "draft"},
    "enable_expert_parallel": {"parallel_config.enable_expert_parallel": True},
    "prefill_context_parallel_size": {"parallel_config.prefill_context_parallel_size": 2},
    "decode_context_parallel_size": {"parallel_config.decode_context_parallel_size": 2},
    "multimodal model": {"model_config.is_multimodal_model": True},
    "enable_sleep_mode": {"model_config.enable_sleep_mode": True},
    "enable_dbo": {"parallel_config.enable_dbo": True},
    "trace_dir": {
        "parallel_config.nnodes": 2,
        "additional_config": {"vpp": {"trace_dir": "/traces"}},
    },
    "kv_connector": {
        "parallel_config.nnodes": 2,
        "kv_transfer_config": SimpleNamespace(
            kv_connector="ExampleConnector", kv_connector_module_path=None
        ),
    },
}


def test_every_refusal_is_tried() -> None:
    from vllm_vpp.plugin.support import REFUSALS

    assert sorted(r.feature for r in REFUSALS) == sorted([*ARGUMENTS, *ATTRIBUTES])


@pytest.mark.parametrize("feature", ARGUMENTS)
def test_unsupported_argument_is_refused(feature: str) -> None:
    arguments = dict(ARGUMENTS[feature])
    if "kv_transfer_config" in arguments:
        from vllm.config import KVTransferConfig

        arguments["kv_transfer_config"] = KVTransferConfig(**arguments["kv_transfer_config"])
    if "ec_transfer_config" in arguments:
        from vllm.config import ECTransferConfig

        arguments["ec_transfer_config"] = ECTransferConfig(**arguments["ec_transfer_config"])
    refused(UnsupportedError, feature, "not supported with vpp", **arguments, **vpp())


def always(value: Any) -> property:
    return property(lambda _: value)


@pytest.mark.parametrize("feature", ATTRIBUTES)
def test_unsupported_config_is_refused(feature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_vpp.plugin.support import check_config

    config = build(**vpp())
    check_config(config)
    for path, value in ATTRIBUTES[feature].items():
        *parts, name = path.split(".")
        owner = config
        for part in parts:
            owner = getattr(owner, part)
        if isinstance(getattr(type(owner), name, None), property):
            monkeypatch.setattr(type(owner), name, always(value))
        else:
            object.__setattr__(owner, name, value)
    with pytest.raises(UnsupportedError, match="not supported with vpp") as caught:
        check_config(config)
    assert feature in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "connector",
    [
        {"kv_connector": "ExampleConnector"},
        {"kv_connector": "ChunkedConnector", "kv_connector_module_path": "engine_connector"},
    ],
)
def test_connectors_that_work_and_those_a_user_brings_are_accepted(
    connector: dict[str, str],
) -> None:
    from vllm.config import KVTransferConfig

    transfer = KVTransferConfig(kv_role="kv_both", **connector)
    built = build(**vpp(), kv_transfer_config=transfer)
    assert built.kv_transfer_config.kv_connector == connector["kv_connector"]


def test_a_node_without_the_engine_is_told_the_same_as_that_with_it() -> None:
    nodes = [build(**vpp(), nnodes=2, node_rank=rank, master_addr="127.0.0.1") for rank in range(2)]
    first, second = (node.additional_config["vpp"] for node in nodes)
    assert first == second
    assert {node.parallel_config.worker_cls for node in nodes} == {
        "vllm_vpp.plugin.worker_cpu.VPPCPUWorker"
    }


def test_asynchronous_scheduling_is_a_scheduler_class_where_it_is_asked_for() -> None:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    for asked in (None, False, True):
        config = build(**vpp(), async_scheduling=asked).scheduler_config
        assert issubclass(config.get_scheduler_cls(), AsyncScheduler) is bool(asked)
        assert not config.async_scheduling, "a model runner would look for tokens of its own"


def test_chunks_switched_off_are_refused() -> None:
    refused(UnsupportedError, "enable_chunked_prefill", enable_chunked_prefill=False, **vpp())


@pytest.mark.parametrize("backend", ["uni", "external_launcher"])
def test_another_executor_is_refused(backend: str) -> None:
    refused(UnsupportedError, backend, "mp", distributed_executor_backend=backend, **vpp())


def test_the_older_ray_executor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "VLLM_USE_RAY_V2_EXECUTOR_BACKEND"
    monkeypatch.setenv(name, "0")
    refused(UnsupportedError, name, "leave it out", distributed_executor_backend="ray", **vpp())


def test_another_scheduler_or_worker_is_refused() -> None:
    refused(UnsupportedError, "a.B", "scheduler_cls", scheduler_cls="a.B", **vpp())
    refused(UnsupportedError, "a.B", "worker_cls", "CPUWorker", worker_cls="a.B", **vpp())


def split_of(settings: dict[str, Any], **model: Any) -> tuple[int, ...]:
    """Layers per stage for a model whose config has these attributes too."""
    from vllm_vpp.core.layout import Layout
    from vllm_vpp.plugin.partition import layers_per_stage
    from vllm_vpp.plugin.settings import Settings

    config = build()
    for name, value in model.items():
        setattr(config.model_config.hf_text_config, name, value)
    return layers_per_stage(config, Layout.of("v", 2), Settings.parse(settings))


SPARSE = {"index_topk": 2048, "index_topk_freq": 4, "index_skip_topk_offset": 3}


def test_a_stage_never_starts_on_a_layer_that_reuses_indices() -> None:
    # layers 0, 1, 2, 6, 10 compute indices of their own (max(i - 2, 0) % 4 == 0)
    assert split_of({"split": [2, 4, 4, 1]}, **SPARSE) == (2, 4, 4, 1)
    with pytest.raises(UnsupportedError, match=r"start on layer 3, .*\[0, 1, 2, 6, 10\]") as caught:
        split_of({"split": [3, 3, 4, 1]}, **SPARSE)
    assert "\n" not in str(caught.value)
    starts = [sum(split_of({}, **SPARSE)[:i]) for i in range(4)]
    assert set(starts) <= {0, 1, 2, 6, 10}


def test_caches_shared_across_layers_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="num_kv_shared_layers"):
        split_of({}, num_kv_shared_layers=4)
    assert sum(split_of({}, num_kv_shared_layers=0)) == LAYERS


def test_the_switch_changes_what_it_says_and_no_more() -> None:
    config = build(**vpp(layout="wave", sweeps=3, in_flight=9))
    assert config.parallel_config.distributed_executor_backend.__name__ == "VPPExecutor"
    assert config.parallel_config.worker_cls == "vllm_vpp.plugin.worker_cpu.VPPCPUWorker"
    assert config.scheduler_config.scheduler_cls == "vllm_vpp.plugin.scheduler.VPPScheduler"
    assert config.max_concurrent_batches == 9
    assert build(**vpp(layout="wave", sweeps=3)).max_concurrent_batches == 7
    plain = flat(build())
    mine = flat(config)
    changed = {key for key in plain.keys() | mine.keys() if plain.get(key) != mine.get(key)}
    assert changed == {
        "additional_config",
        "parallel_config.cpu_distributed_timeout_seconds",
        "parallel_config.distributed_executor_backend",
        "parallel_config.worker_cls",
        "scheduler_config.scheduler_cls",
    }


def flat(value: Any, path: str = "") -> dict[str, str]:
    """Every field of a config, at any depth, by its path; random names left out."""
    if not dataclasses.is_dataclass(value):
        return {} if path == "instance_id" else {path: repr(value)}
    found = {f"{path}:type": type(value).__qualname__}
    for field in dataclasses.fields(value):
        name = f"{path}.{field.name}" if path else field.name
        if name == "model_config.hf_config" or name == "model_config.hf_text_config":
            continue
        found |= flat(getattr(value, field.name), name)
    return found


@pytest.mark.parametrize("additional", [{}, {"other": {"layout": "v"}}])
@pytest.mark.parametrize("ranks", [1, 2])
def test_without_the_switch_the_config_is_that_of_stock_vllm(
    additional: dict[str, Any], ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.executor import Executor

    changes = {"additional_config": additional, "pipeline_parallel_size": ranks}
    mine = build(**changes)
    hooks.uninstall()
    from vllm.engine.arg_utils import EngineArgs

    assert not hasattr(EngineArgs.create_engine_config, "__vllm_vpp_original__")
    monkeypatch.setattr(hooks, "install", lambda: None)  # what vLLM's plugin loader calls, too
    stock = build(**changes)
    assert not hasattr(EngineArgs.create_engine_config, "__vllm_vpp_original__")
    assert flat(mine) == flat(stock)
    assert Executor.get_class(mine) is Executor.get_class(stock)
    assert mine.max_concurrent_batches == stock.max_concurrent_batches == ranks
    assert mine.scheduler_config.get_scheduler_cls() is stock.scheduler_config.get_scheduler_cls()
    assert mine.compute_hash() == stock.compute_hash()


def originals() -> list[Any]:
    return [hook.owner.__dict__[hook.attribute] for hook in hooks.HOOKS]


def test_hooks_are_installed_once_and_undone_completely() -> None:
    build()
    hooks.uninstall()
    before = originals()
    hooks.uninstall()
    assert originals() == before
    register()
    once = originals()
    assert all(a is not b for a, b in zip(before, once, strict=True))
    register()
    assert all(a is b for a, b in zip(once, originals(), strict=True))
    hooks.uninstall()
    assert all(a is b for a, b in zip(before, originals(), strict=True))


class Upstream:
    """Stands for a class of vLLM."""

    def changed(self, new: int, old: int) -> int:
        return old - new

    def kept(self, old: int) -> int:
        return old


def hook(name: str) -> Hook:
    return Hook(
        target=f"{__name__}:Upstream.{name}",
        reason="test",
        upstream="test",
        remove_when="never",
        parameters=("self", "old"),
        replace=lambda original: lambda self, old: original(self, old) + 1,
    )


def test_a_changed_signature_is_refused_and_nothing_is_wrapped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this_module())
    kept, changed, missing = hook("kept"), hook("changed"), hook("missing")
    for broken, text in ((changed, "takes"), (missing, "not in this vLLM")):
        monkeypatch.setattr(hooks, "HOOKS", (kept, broken))
        with pytest.raises(UnsupportedError, match=text) as caught:
            hooks.install()
        assert "\n" not in str(caught.value)
        assert Upstream().kept(1) == 1, "the first hook stayed although the second is impossible"
    monkeypatch.setattr(hooks, "HOOKS", (kept,))
    hooks.install()
    assert Upstream().kept(1) == 2
    hooks.uninstall()
    assert Upstream().kept(1) == 1


def _this_module() -> Any:
    import types

    module = types.ModuleType(__name__)
    module.__dict__["Upstream"] = Upstream
    return module


def test_every_hook_says_why_and_until_when() -> None:
    for one in hooks.HOOKS:
        assert one.reason
        assert one.remove_when
        assert one.upstream.endswith(".py")


def test_the_entry_point_loads_no_torch() -> None:
    code = (
        "import sys; from importlib.metadata import entry_points\n"
        "(found,) = entry_points(group='vllm.general_plugins', name='vpp'); found.load()\n"
        "print(sorted({'torch', 'vllm', 'numpy'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["[]"]


def test_a_new_trace_folder_is_private(tmp_path: Path) -> None:
    config = build(**vpp(trace_dir=str(tmp_path / "a" / "trace")))
    folder = Path(config.additional_config["vpp"]["trace_dir"])
    assert folder.stat().st_mode & 0o777 == 0o700
    json.dumps(config.additional_config)
