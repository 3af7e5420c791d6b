"""Writes the documentation that comes from code and from results; `--check` compares only.

docs/vllm.md from the plugin's source, docs/features.md from its refusals; docs/results.md,
docs/claims.md and the README's table and pictures from results/*.json.
"""

import ast
import sys
from collections.abc import Callable, Iterator

from breakdown_section import long_section, short_section
from claims_page import claims_page
from model_sections import arms_section, operators_section, tau_picture, tau_section
from results_page import NOTE, ROOT, Rows, exists, readme_block, sections, table, timelines
from serving_sections import (
    fairness_section,
    lengths_section,
    mixed_section,
    recording_section,
)

PLUGIN = ROOT / "src" / "vllm_vpp" / "plugin"


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Modules of the plugin with their syntax trees."""
    for path in sorted(PLUGIN.glob("*.py")):
        yield path.stem, ast.parse(path.read_text(encoding="utf-8"))


def imported() -> Rows:
    """Every symbol imported from vLLM, and the modules that use it."""
    users: dict[str, set[str]] = {}
    for name, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
                for alias in node.names:
                    users.setdefault(f"{node.module}.{alias.name}", set()).add(name)
    return [(f"`{symbol}`", ", ".join(sorted(where))) for symbol, where in sorted(users.items())]


def subclassed() -> Rows:
    """Classes over vLLM's, with what they override or add."""
    rows: list[tuple[str, ...]] = []
    for name, tree in sources():
        symbols = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm.")
            for alias in node.names
        }
        for node in tree.body:
            if not isinstance(node, ast.ClassDef):
                continue
            bases = [b.id for b in node.bases if isinstance(b, ast.Name) and b.id in symbols]
            if bases or node.name in ("AdapterHost", "StageHost"):
                methods = [m.name for m in node.body if isinstance(m, ast.FunctionDef)]
                over = ", ".join(bases) or "the platform's worker class"
                rows.append((f"`{name}.{node.name}`", over, ", ".join(f"`{m}`" for m in methods)))
    return rows


def vllm_page() -> str:
    """docs/vllm.md."""
    from vllm_vpp.plugin.borders import BORDERS
    from vllm_vpp.plugin.hooks import HOOKS

    hooks = [(f"`{h.target}`", h.reason, h.upstream, h.remove_when) for h in HOOKS]
    borders = [(f"`{b.symbol}`", b.use, b.why) for b in BORDERS]
    return (
        "# What of vLLM is touched\n\n"
        + NOTE
        + "Written for vLLM 0.32 with its V1 model runner.\n\n"
        "## Wrapped functions\n\nInstalled by the `vllm.general_plugins` entry point; each "
        "checks the signature "
        "that it expects, is idempotent, can be undone, and does nothing for a config without "
        "`vpp`.\n\n"
        + table(("target", "why", "upstream", "can go when"), hooks)
        + "\n## Subclasses\n\n"
        + table(("class", "over", "methods"), subclassed())
        + "\n## Undocumented state\n\n"
        + table(("symbol", "use", "why"), borders)
        + "\n## Imported symbols\n\n"
        + table(("symbol", "used by (module of the plugin)"), imported())
    )


def keys_of(tree: ast.Module, table: str) -> list[str]:
    """Keys of the dictionary of that name, in the order written; none where there is no such."""
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id == table and isinstance(value, ast.Dict):
            return [str(ast.literal_eval(key)) for key in value.keys if key is not None]
    return []


def shown() -> Rows:
    """What each engine test shows, in the words of its name; the features of a table one by one."""
    rows: list[tuple[str, ...]] = []
    for path in sorted((ROOT / "tests" / "engine").glob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        features = keys_of(tree, "FEATURES")
        layouts = ", ".join(keys_of(tree, "LAYOUTS")) or "v"
        claim = f"answers like stock vLLM ({layouts})"
        rows += [(f"{name}: {claim}", f"`{path.stem}`") for name in features]
        names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
        rows += [
            (name.removeprefix("test_").replace("_", " "), f"`{path.stem}`")
            for name in names
            if name.startswith("test_") and not (features and "a_feature_answers" in name)
        ]
    return rows


def features_page() -> str:
    """docs/features.md."""
    from vllm_vpp.plugin.support import REFUSALS

    rows = [(f"`{r.feature}`", r.why, r.fix) for r in REFUSALS]
    return (
        "# What works, and what is refused\n\n"
        + NOTE
        + "What is in neither list is not claimed.\n\n## Refused\n\n"
        "Checked at start-up, in one line, before any process is started.\n\n"
        + table(("setting", "why it does not run with vpp", "what to do"), rows)
        + "\n## Shown by tests on real engines\n\nOn vLLM's CPU backend; each by the test of that "
        "name in `tests/engine`.\n\n" + table(("what", "where"), shown())
    )


MORE: dict[str, Callable[[], str]] = {
    "lengths": lengths_section,
    "long": long_section,
    "short": short_section,
    "mixed": mixed_section,
    "fairness": fairness_section,
    "tau": tau_section,
    "arms": arms_section,
    "operators": operators_section,
    "recording": recording_section,
}


def results_page() -> str:
    """docs/results.md."""
    return (
        "# Results\n\n"
        + NOTE
        + "Generated from `results/*.json` (`make bench`, then `make docs`). The machine drifts "
        "by a factor of two between minutes: compare ratios, and only within one table. "
        "Formulas are in metrics.md.\n\n" + sections(MORE)
    )


def readme() -> str:
    """README.md with its generated block replaced."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    begin, end = "<!-- results -->\n", "<!-- end of results -->"
    before, rest = text.split(begin)
    return before + begin + readme_block() + end + rest.split(end)[1]


PAGES: dict[str, Callable[[], str]] = {
    "docs/vllm.md": vllm_page,
    "docs/features.md": features_page,
    "docs/results.md": results_page,
    "docs/claims.md": claims_page,
    "docs/timelines.svg": timelines,
    "README.md": readme,
}
if exists("tau"):
    PAGES["docs/tau.svg"] = tau_picture


def main() -> int:
    """Write the pages, or with --check say which are out of date."""
    stale = []
    for name, make in PAGES.items():
        path, text = ROOT / name, make()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
    print("\n".join(f"{'stale' if '--check' in sys.argv else 'written'}: {name}" for name in stale))
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
