"""The command lines of the console tools: an example of each option of each tool."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any  # Any: what is recorded of calls

import pytest

from graphdist.tools import compile, measure, run, viz, viz_options
from graphdist.tools.bench import command as bench
from graphdist.tools.given_options import written
from graphdist.tools.truth import command as truth
from tests.tools.replaced import (
    without_benchmarks,
    without_browser,
    without_compilers,
    without_measuring,
    without_predicting,
    without_workers,
)


@dataclass(frozen=True)
class Example:
    """An option as it is given, with the examples that it needs, and those it replaces."""

    option: str
    arguments: tuple[str, ...]
    needs: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    target: str | None = None


@dataclass(frozen=True)
class Tool:
    """A console tool, the arguments that each command has, and examples of all its options."""

    main: Callable[[list[str]], int]
    parser: Callable[[], argparse.ArgumentParser]
    examples: dict[str, Example]
    replaced: Callable[[pytest.MonkeyPatch, list[Any]], None]
    target: str = ""
    base: dict[str, tuple[str, ...]] = field(default_factory=dict)
    says_the_same: frozenset[frozenset[str]] = frozenset()
    """Pairs of which one says what the other already does."""

    def closure(self, names: frozenset[str]) -> frozenset[str]:
        """Return examples with all that they need."""
        more = names.union(*(self.examples[name].needs for name in names))
        return names if more == names else self.closure(more)

    def command(self, names: frozenset[str]) -> tuple[str, ...]:
        """Return the command line with these examples."""
        chosen = [self.examples[name] for name in sorted(names)]
        given = {example.option for example in chosen}
        dropped = given.union(*(example.without for example in chosen))
        base = [text for name, texts in self.base.items() if name not in dropped for text in texts]
        # A file is shorter than a function in it.
        target = min((each.target for each in chosen if each.target), key=len, default=self.target)
        has_target = target and "target" not in dropped
        options = [text for example in chosen for text in example.arguments]
        return (*options, *base, *([target] if has_target else []))

    def names(self, message: str, example: str) -> bool:
        """Return whether a message names an example, or what it needs."""
        found = [self.examples[name] for name in self.closure(frozenset({example}))]
        texts = [text for each in found for text in (written(each.option), *each.arguments)]
        return any(text in message for text in texts)


def examples(*found: Example) -> dict[str, Example]:
    return {" ".join(example.arguments): example for example in found}


def option(name: str, *values: str, **more: Any) -> Example:
    return Example(name, (f"--{name.replace('_', '-')}", *values), **more)


OUTPUT = Example("output", ("-o", "out"))
TOPOLOGY = option("topology", "v5e:2x2", without=("strategy",))
OF_TOPOLOGY = ("--topology v5e:2x2",)
COMPILATION = (
    option("passes", "infer_layouts,place_variables,lower_cross_replica"),
    option("set", "size=5"),
    option("args", "f32[7]", target="steps.py:double"),
    option("plan", "plan.json"),
)
_TO_FIND = ("--find-plan out.plan",)
COMPILE = examples(
    Example("target", ("steps.py:make_step",)),
    TOPOLOGY,
    OUTPUT,
    option("platforms", "cpu", needs=("-o out",)),
    option("num_slices", "2"),
    option("shard_parameters", "2"),
    option("cores", "2"),
    *COMPILATION,
    option("option", "xla_a=1"),
    option("fit", "size=1..2"),
    option("compare", "v5e:2x2,v6e:2x2", without=("topology",)),
    option("scale", "4,16"),
    option("against", "old.json"),
    option("allow", "50%", needs=("--against old.json",)),
    option("list_variables", "step.gdx", without=("topology", "target")),
    option("list_topologies", without=("topology", "target")),
    option("timeline", "out.json"),
    option("find_plan", "out.plan"),
    option("memory", "1GiB", needs=_TO_FIND),
    option("compilations", "2", needs=_TO_FIND),
    option("vary", "size=4,5", needs=_TO_FIND),
    option("picture", "plan.svg", needs=_TO_FIND),
    option("quick"),
    option("json"),
    option("quiet"),
)
VIZ = examples(
    option("strategy", "mirrored:3"),
    TOPOLOGY,
    option("num_slices", "2", needs=OF_TOPOLOGY),
    option("shard_parameters", "2", needs=OF_TOPOLOGY),
    option("cores", "2", needs=OF_TOPOLOGY),
    *COMPILATION,
    option("option", "xla_a=1", needs=("--format hlo",)),
    option("pass", "trace"),
    option("pass", "all"),
    option("diff", "trace", "last"),
    option("all", needs=("-o out",), target="steps.py"),
    option("compare", "old.json"),
    *(option("format", name) for name in ("svg", "json", "perfetto", "stablehlo", "hlo")),
    OUTPUT,
    option("open"),
    option("sources"),
    option("collectives"),
    option("filter", "exp|cos|all_reduce"),
    option("focus", "%1"),
    option("depth", "1", needs=("--focus %1",)),
)
# A saved graph has other names of nodes and passes.
_OF_STEPS = (
    "--focus %1",
    "--diff trace last",
    "--pass trace",
    "--filter exp|cos|all_reduce",
)
SAVED = {
    **{
        name: replace(each, target=None, needs=tuple(n.replace("%1", "%5") for n in each.needs))
        for name, each in VIZ.items()
        if name not in _OF_STEPS
    },
    **examples(
        option("focus", "%5"),
        option("diff", "0 spmd", "1 spmd"),
        option("pass", "0 spmd"),
        option("filter", r"= scale\(%[4-9]\)"),
    ),
}
MEASURE = examples(
    option("topology", "v5e:2x4"),
    option("steps", "3"),
    option("integers_below", "5"),
    option("report", "old.json", target="profile"),
    option("shard_parameters", "2"),
    option("cores", "2"),
    option("set", "size=5"),
    option("json"),
)
TRUTH = examples(
    option("row", "18"),
    option("family", "maxtext-v5e"),
    option("table", "table.json"),
    option("modules", "modules"),
    option("kept"),
    option("again"),
    option("graphs"),
    option("write", "docs"),
    option("json"),
)
BENCH = examples(
    *(Example("names", (name,), without=("names",)) for name in ("passes", "dispatch", "large")),
    option("systems", "graphdist"),
    option("devices", "4"),
    option("topology", "v5e:2x2"),
    option("rounds", "3"),
    option("turn", "0.5"),
    option("compilations", "7"),
    option("tiny"),
    option("json", "out.json"),
    option("svg", "out.svg"),
    option("record", "out.jsonl"),
    option("no_record"),
)
RUN = examples(
    option("devices_per_worker", "2"),
    option("max_restarts", "2"),
    option("min_workers", "1", needs=("--max-restarts 2",)),
    option("grace", "3"),
    option("host", "::1"),
    Example("m", ("-m",)),
)


def same(*pairs: tuple[str, str]) -> frozenset[frozenset[str]]:
    return frozenset(map(frozenset, pairs))


STEP = "steps.py:make_step"
# The formats of several passes hold all, unless one is named.
HOLDS_ALL = same(
    *((shown, "--format json") for shown in ("--pass all", "--diff 0 spmd 1 spmd")),
    *((shown, "--open") for shown in ("--pass all", "--diff 0 spmd 1 spmd")),
)
SHOWN = Tool(
    viz.main,
    viz_options.command_line,
    VIZ,
    without_browser,
    STEP,
    {"strategy": ("--strategy", "mirrored:2")},
    HOLDS_ALL,
)
TOOLS = {
    "compile": Tool(
        compile.main,
        compile.command_line,
        COMPILE,
        without_compilers,
        STEP,
        {"topology": ("--topology", "v5e:2x2")},
    ),
    "viz": SHOWN,
    "viz of a saved graph": replace(SHOWN, examples=SAVED, target="chain.gd", base={}),
    "measure": Tool(measure.main, measure.command_line, MEASURE, without_measuring, STEP),
    "truth": Tool(truth.main, truth.command_line, TRUTH, without_predicting),
    "bench": Tool(
        bench.main,
        bench.command_line,
        BENCH,
        without_benchmarks,
        base={"names": ("small",)},
        says_the_same=same(("--tiny", "--no-record")),  # tiny models are not recorded
    ),
    "run": Tool(run.main, run.command_line, RUN, without_workers, "steps.py", {"n": ("-n", "3")}),
}
