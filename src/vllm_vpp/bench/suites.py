"""The measurements whose results are kept in `results/`: the one registry.

Owns titles, numbers of rounds, and the plans of long prompts, one at a time; plans of other kinds
are modules of their own. `compare` runs them, `tools/make_docs.py` turns the files into tables.
"""

from vllm_vpp.bench import at_best, beside, mixed, one_prompt, overhead, predicted, tau, together
from vllm_vpp.bench.arms import llama_cost, made_arm, moe_arm, random_prompt, smollm2_arm, text
from vllm_vpp.bench.engine import Request
from vllm_vpp.bench.models import small
from vllm_vpp.bench.suite import Plan, Suite

__all__ = ["SUITES"]


def _chunks() -> Plan:
    """Both layouts in turn, chunk by chunk."""
    arms = [
        moe_arm(f"{name} {chunk}", {"layout": layout}, chunk=chunk, experts=256)
        for chunk in (256, 512, 1024, 2048, 4096)
        for name, layout in (("CPP", "linear"), ("VPP", "v"))
    ]
    return arms, {"": [Request(prompt=random_prompt(8000, 1))]}


def _equal() -> Plan:
    arms = [
        smollm2_arm(name, 1536, 16_000, {"layout": layout})
        for name, layout in (("CPP", "linear"), ("VPP", "v"))
    ]
    return arms, {"": [Request(prompt=text(16_000), max_tokens=8)]}


def _long() -> Plan:
    """One layer per stage: 65,500 tokens take long enough. Ramps are planned for the law."""
    spec, law = small("llama", layers=4, dtype="bfloat16"), llama_cost(layers=4)
    ramp = {"policy": "ramp"}
    equal_time = {"policy": "equal-time", "chunk": 2048}
    arms = [
        made_arm(name, spec, vpp | {"cost": law}, chunk, 65_536)
        for name, chunk, vpp in (
            ("CPP", 2048, {"layout": "linear"}),
            ("DCPP", 2048, {"layout": "linear", "chunking": equal_time}),
            ("VPP", 2048, {"layout": "v"}),
            ("VPP + ramp", 8192, {"layout": "v", "chunking": ramp}),
        )
    ]
    return arms, {"": [Request(prompt=random_prompt(65_500, 1))]}


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            name="chunks",
            title="Best fixed chunk, small mixture of 256 experts, 8000 tokens",
            rounds=8,
            plan=_chunks,
            alive=2,
        ),
        Suite(
            name="equal",
            title="Equal chunks, SmolLM2-135M, 16,000 tokens",
            rounds=10,
            plan=_equal,
        ),
        Suite(
            name="policies",
            title="Every policy at its best, SmolLM2-135M, 16,000 tokens",
            rounds=10,
            plan=at_best.policies,
        ),
        Suite(
            name="policies-32k",
            title="Every policy at its best, SmolLM2-135M, 32,000 tokens",
            rounds=8,
            plan=at_best.policies_32k,
        ),
        Suite(
            name="waves",
            title="Two, three and four sweeps, each at its best, SmolLM2-135M, 16,000 tokens",
            rounds=8,
            plan=at_best.waves,
        ),
        Suite(
            name="moe",
            title="Every policy at its best, small mixture of 192 experts, 8000 tokens",
            rounds=12,
            plan=at_best.moe(8000),
        ),
        Suite(
            name="moe-16k",
            title="Every policy at its best, small mixture of 192 experts, 16,000 tokens",
            rounds=8,
            plan=at_best.moe(16_000),
        ),
        Suite(
            name="moe-32k",
            title="Every policy at its best, small mixture of 192 experts, 32,000 tokens",
            rounds=8,
            plan=at_best.moe(32_000),
        ),
        Suite(
            name="lengths",
            title="One prompt of 4096 to 16,384 tokens, small Llama",
            rounds=8,
            plan=one_prompt.lengths,
        ),
        Suite(
            name="long",
            title="Bubble, small Llama of four layers, 65,500 tokens",
            rounds=8,
            plan=_long,
        ),
        Suite(
            name="ablation",
            title="Three requests at once, small Llama, 8192 tokens each",
            rounds=8,
            plan=together.ablation,
        ),
        Suite(
            name="short",
            title="32 short prompts at once, small Llama",
            rounds=8,
            plan=together.short,
        ),
        Suite(
            name="depth",
            title="Micro-batches in flight, small Llama, 8192 tokens in chunks of 512",
            rounds=8,
            plan=one_prompt.depth,
        ),
        Suite(
            name="sliding",
            title="Sliding windows, small Gemma 3, 16,384 tokens",
            rounds=8,
            plan=one_prompt.sliding,
        ),
        Suite(
            name="bubble",
            title="Bubble, small Llama, 32,768 tokens in chunks of 2048",
            rounds=8,
            plan=one_prompt.bubble,
        ),
        Suite(
            name="decode",
            title="Decode, SmolLM2-135M, batch of 8, 128 tokens each",
            rounds=8,
            plan=together.decode,
        ),
        Suite(
            name="memory",
            title="Memory of micro-batches in flight, small Llama",
            rounds=1,
            plan=together.memory,
        ),
        Suite(
            name="reality",
            title="Runs that a fitted cost model has to predict",
            rounds=1,
            plan=predicted.reality,
            alive=1,
        ),
        Suite(
            name="mixed",
            title=f"Many lengths over time, divided by {mixed.SCALE}, small Llama",
            rounds=8,
            plan=mixed.mixed,
        ),
        Suite(
            name="fairness",
            title="Beside long prompts: who decodes and who is short, small Llama",
            rounds=8,
            plan=beside.fairness,
        ),
        Suite(
            name="tau",
            title="Chunk time against chunk number, 16,384 tokens in chunks of 1024",
            rounds=8,
            plan=tau.tau,
            timed=tau.latent,
        ),
        Suite(
            name="arms",
            title="Every policy once, small Llama, 8192 tokens",
            rounds=8,
            plan=predicted.arms,
            alive=5,
        ),
        Suite(
            name="recording",
            title="What recording costs, small Llama, 8192 tokens in chunks of 512",
            rounds=32,
            plan=overhead.recording,
        ),
        Suite(
            name="operators",
            title="Operator groups, small Llama, 8192 tokens in chunks of 1024",
            rounds=8,
            plan=overhead.operators,
        ),
    )
}
