"""A run in words, as RedundancyBench's runner writes it: what judges read, ours behind ``models/serve.py`` too."""

from __future__ import annotations

import orjson

from stepsieve.data.trajectory import Trajectory


def transcript(run: Trajectory) -> str:
    """The messages of a run with their indices, each text as JSON on one line, so that none passes for another line."""
    calls: dict[int, list[str]] = {}
    results: dict[int, str] = {}
    for it in run.interactions:
        if it.result_index is None:
            continue
        pair = f"interaction=[{it.call_index},{it.result_index}]"
        arguments = orjson.dumps(it.call.arguments, option=orjson.OPT_SORT_KEYS).decode()
        calls.setdefault(it.call_index, []).append(f"  tool_call: {pair} name={it.call.name} arguments={arguments}")
        results[it.result_index] = f"  tool_result: {pair} error={str(it.error).lower()}"
    lines = [f"Domain: {run.domain}", "", "Recorded observable trajectory:"]
    for index, message in enumerate(run.messages):
        owner = f" requestor={message.requestor}" if message.role == "tool" else ""
        lines.append(f"[{index}] {message.role}{owner}")
        if message.content:
            lines.append(f"  content: {orjson.dumps(message.content).decode()}")
        lines += [*calls.get(index, ()), *([results[index]] if index in results else ())]
    return "\n".join(lines)
