"""What is far too large is refused or cut before anything looks at it: others get their turns."""

from __future__ import annotations

import asyncio

import pytest
from hermes_nb import Hermes
from hermes_nb.models.scripted import ScriptedModel, call

HUGE = {
    "prose": "the user likes green tea and " * 150_000,
    "letters": "a" * 4_000_000,
    "words": " ".join(f"w{number}" for number in range(500_000)),
    "lines": "x\n" * 2_000_000,
}


async def told(hermes):
    """Take a turn, and return how often another task had its turn meanwhile."""
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    beside = asyncio.create_task(tick())
    async for _ in hermes.stream("go"):
        pass
    beside.cancel()
    return ticks


@pytest.mark.new_prefix
@pytest.mark.parametrize("kind", HUGE)
@pytest.mark.parametrize("way", ["content", "operations", "write_file"])
def test_a_call_of_megabytes_is_refused_with_its_limit(home, tmp_path, kind, way):
    text = HUGE[kind]
    made = {
        "content": ("memory", {"action": "add", "content": text}),
        "operations": ("memory", {"operations": [{"action": "add", "content": text[:60_000]}]}),
        "write_file": ("write_file", {"path": "a.txt", "content": text}),
    }
    name, arguments = made[way]
    model = ScriptedModel([call(name, **arguments), "Done."])
    with Hermes(model, home=home, cwd=tmp_path, approve="all") as hermes:
        ticks = asyncio.run(told(hermes))
    result = model.requests[-1].messages[-1].text
    limit = "500,000" if name == "write_file" else "50,000"
    assert f"at most {limit}" in result and ticks
    assert not (tmp_path / "a.txt").exists()
    # Neither stored nor sent back.
    assert sum(len(str(message)) for message in model.requests[-1].messages) < 50_000
    assert sum(path.stat().st_size for path in home.rglob("*") if path.is_file()) < 1_000_000
