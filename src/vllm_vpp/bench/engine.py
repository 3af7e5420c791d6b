"""One vLLM engine in a process of its own, as a measurement drives it.

Owns starting, asking and ending the process (`engine_process`), and what an arm of a comparison is.
Any number of engines can be alive side by side; idle ones sleep.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from vllm_vpp.errors import VPPError

__all__ = ["Arm", "Engine", "EngineError", "Reply", "Request"]


_KV_BYTES = 1 << 29  # per rank: enough for 32K tokens of the small models measured here


class EngineError(VPPError, RuntimeError):
    """An engine that did not start, or ended by itself; the message ends with its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One side of a comparison.

    `vpp` is the value of the switch, or None for stock vLLM. `chunk` is vLLM's
    max_num_batched_tokens. `options` are further engine arguments. `record`: whether a trace is
    written, of which metrics come. `profile`: whether torch.profiler watches every measured run.
    `watch`: what is switched on for its runs, `live` and `trace`, in an engine that it shares with
    the arms that differ in nothing else; None for an engine of its own.
    """

    name: str
    model: str
    ranks: int
    chunk: int
    max_model_len: int
    vpp: dict[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    record: bool = True
    profile: bool = False
    watch: dict[str, bool] | None = None

    @property
    def has_trace(self) -> bool:
        """Whether its runs leave a trace."""
        watched = self.watch is None or self.watch["trace"]
        return self.record and watched and self.vpp is not None

    def arguments(self, trace_dir: Path | None, profile_dir: Path | None) -> dict[str, Any]:
        """Keyword arguments of vLLM's EngineArgs."""
        extra: dict[str, Any] = {}
        if self.vpp is not None:
            trace = {} if trace_dir is None else {"trace_dir": str(trace_dir)}
            extra["additional_config"] = {"vpp": {**self.vpp, **trace}}
        if profile_dir is not None:
            extra["profiler_config"] = {
                "profiler": "torch",
                "torch_profiler_dir": str(profile_dir.absolute()),
                "torch_profiler_with_stack": False,
            }
        return {
            "model": self.model,
            "pipeline_parallel_size": self.ranks,
            "max_num_batched_tokens": self.chunk,
            "max_model_len": self.max_model_len,
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "kv_cache_memory_bytes": _KV_BYTES,
            "skip_tokenizer_init": True,
            "disable_log_stats": True,
            **extra,
            **self.options,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt of token ids, sent `at` seconds after the start of a run.

    `among`: and not before fewer than so many are unanswered (clients that wait); None for at once.
    """

    prompt: Sequence[int]
    max_tokens: int = 1
    at: float = 0.0
    among: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the client saw of one request; times on the host's monotonic clock."""

    sent_ns: int
    token_ns: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]

    @property
    def ttft(self) -> float:
        """Seconds from sending the request to its first token."""
        return (self.token_ns[0] - self.sent_ns) * 1e-9

    @property
    def itl(self) -> list[float]:
        """Seconds from each token to the next."""
        return [(b - a) * 1e-9 for a, b in pairwise(self.token_ns)]


class Engine:
    """A running engine; use as a context manager. `log` receives everything vLLM prints."""

    def __init__(
        self,
        arm: Arm,
        *,
        log: Path,
        trace_dir: Path | None = None,
        profile_dir: Path | None = None,
    ) -> None:
        self.arm = arm
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        reading, writing = os.pipe()
        environment = {k: v for k, v in os.environ.items() if k != "VLLM_CPU_KVCACHE_SPACE"} | {
            "VLLM_CPU_OMP_THREADS_BIND": "|".join(str(core) for core in _cores(arm.ranks)),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        with log.open("w", encoding="utf-8") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "vllm_vpp.bench.engine_process", str(writing)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(writing,),
                env=environment,
                text=True,
                start_new_session=True,
            )
        os.close(writing)
        self._answers: TextIO = os.fdopen(reading, "r", encoding="utf-8")
        self._tell(arm.arguments(trace_dir, profile_dir))

    def wait_ready(self) -> None:
        """Block until the engine has loaded. Raises EngineError if it did not."""
        self._hear()

    def run(
        self,
        requests: Sequence[Request],
        *,
        measured: bool = True,
        watch: dict[str, bool] | None = None,
    ) -> list[Reply]:
        """Serve the requests and return a reply for each, in their order.

        Without `measured`, a run to warm up: the profiler of an arm that has one is left out.
        `watch`: see `Arm`; stays as it is with None.
        """
        asked = [
            {"prompt": list(r.prompt), "max_tokens": r.max_tokens, "at": r.at, "among": r.among}
            for r in requests
        ]
        profile = self.arm.profile and measured
        self._tell({"requests": asked, "profile": profile, "watch": watch})
        return [
            Reply(
                sent_ns=seen["sent_ns"],
                token_ns=tuple(seen["token_ns"]),
                tokens=tuple(seen["tokens"]),
                logprobs=tuple(seen["logprobs"]),
            )
            for seen in self._hear()["requests"]
        ]

    def peak_bytes(self) -> dict[str, int]:
        """Largest resident memory so far of each worker, by process title."""
        peaks: dict[str, int] = {}
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                title = (
                    (status.parent / "cmdline").read_text(encoding="utf-8").split("\0")[0].strip()
                )
                session = os.getsid(int(status.parent.name))
                fields = dict(
                    line.split(":", 1) for line in status.read_text(encoding="utf-8").splitlines()
                )
            except (OSError, ValueError):
                continue  # it ended meanwhile
            if session == self._process.pid and "Worker" in title:
                peaks[title] = int(fields["VmHWM"].split()[0]) * 1024
        return peaks

    def _tell(self, value: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def _hear(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise self._ended()
        heard: dict[str, Any] = json.loads(line)
        return heard

    def _ended(self) -> EngineError:
        last = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
        return EngineError(
            f"engine {self.arm.name} ended by itself; its log {self._log} ends:\n{last}"
        )

    def close(self) -> None:
        """End the engine and every process that it started."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._answers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _cores(ranks: int) -> list[int]:
    """One core per rank, shared in turn where there are fewer cores than ranks."""
    allowed = sorted(os.sched_getaffinity(0))
    return [allowed[rank % len(allowed)] for rank in range(ranks)]
