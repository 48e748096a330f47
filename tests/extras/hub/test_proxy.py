"""`jupyter hermes proxy`: a real process between a provider and users whom a hub knows."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socketserver
import threading
from pathlib import Path

import pytest
import yaml
from hermes_nb import Hermes
from hermes_nb.core.errors import ConfigError
from hermes_nb.extras.hub.proxy import Rules

from tests.extras.hub.proxies import SECRET
from tests.loopback import (
    Reply,
    chunk,
    disconnect,
    document,
    event,
    failure,
    pause,
    says,
    stream,
    text_chunks,
    usage_chunk,
)
from tests.patience import until

pytestmark = pytest.mark.slow


class Silent(socketserver.BaseRequestHandler):
    """A provider that takes a request and closes the connection."""

    def handle(self):
        self.request.recv(65_536)


def plain(prompt, output, cached=0):
    usage = {"prompt_tokens": prompt, "completion_tokens": output}
    usage["prompt_tokens_details"] = {"cached_tokens": cached}
    message = {"role": "assistant", "content": "Hello."}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return document({"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage})


def test_a_budget_ends_for_one_user_and_the_cell_says_so(serving, tmp_path):
    with serving(stream(text_chunks("Hello."), usage=False), says("Hi.")) as proxy:
        proxy.server.replies[0] = Reply(
            [*map(event, [*text_chunks("Hello."), usage_chunk(90, 15)])]
        )

        def turn(token):
            options = {"base_url": proxy.base, "api_key": token, "home": tmp_path / token}
            with Hermes("small", tools=[], **options) as hermes:
                return hermes.ask("hi")

        first, second, other = turn("ada-token"), turn("ada-token"), turn("bob-token")
    assert (first.text, first.usage.input, other.text) == ("Hello.", 90, "Hi.")
    assert second.reason == "failed"
    assert second.error.startswith(
        "the account has no quota left (402): ada: today's budget of 100 tokens is used up (105); "
        "it resets at 00:00"
    )
    sent = proxy.server.exchanges
    assert [e.headers["authorization"] for e in sent] == [f"Bearer {SECRET}"] * 2
    assert all("ada-token" not in str(e.headers) + e.body.decode() for e in sent)


def test_answers_of_all_kinds_are_counted(serving):
    replies = [plain(40, 2, cached=30), stream(text_chunks("Hi."), usage=False), failure(500)]
    with serving(*replies, budget={"tokens": 100_000, "dollars": 1}) as proxy:
        status, body = proxy.ask()
        assert status == 200 and "Hello." in body
        used = proxy.used()
        assert used["tokens"] == 42
        assert used["dollars"] == pytest.approx((10 + 30 * 0.1 + 2 * 10) / 1e6)
        # Whoever asks for no figures is counted by the longest answer that there may be.
        status, body = proxy.ask(
            stream=True, stream_options={"include_usage": False}, service_tier="priority"
        )
        sent = proxy.server.bodies[-1]
        assert "[DONE]" in body and sent["stream_options"] == {"include_usage": True}
        assert "service_tier" not in sent
        guessed = proxy.used()["tokens"]
        assert guessed > 42 + 32_000
        assert proxy.ask()[0] == 500  # a failure of the provider's costs nothing
        assert proxy.used()["tokens"] == guessed
        assert proxy.used("bob-token")["tokens"] == 0


def test_who_leaves_pays_for_the_whole_answer(serving):
    answer = Reply([event(text_chunks("Hello.")[1]), pause(1.5), event(usage_chunk(50, 30))])
    with serving(answer) as proxy:
        with pytest.raises(TimeoutError):
            proxy.ask(stream=True, timeout=0.5)
        assert proxy.used()["tokens"] >= 1000  # the estimate, while it goes on
        assert until(lambda: proxy.used()["tokens"] == 80)


EARLY = {"choices": [{"index": 0, "delta": {"content": "H"}}], "usage": usage_chunk(50, 1)["usage"]}
UNENDED = {"choices": [{"index": 0, "delta": {"content": "H"}, "finish_reason": "null"}]}


@pytest.mark.parametrize(
    "pieces",
    [
        [EARLY, chunk(finish="stop")],
        [UNENDED | {"usage": EARLY["usage"]}],
        [{"type": "message_start", "message": {"usage": {"input_tokens": 50, "output_tokens": 1}}}],
        [{"candidates": [{"content": {}}], "usageMetadata": {"promptTokenCount": 50}}],
    ],
    ids=["figures before the end", "an end that is none", "anthropic", "gemini"],
)
def test_a_stream_that_was_cut_counts_as_the_longest_answer(serving, pieces):
    with serving(Reply([event(each) for each in pieces])) as proxy:
        proxy.ask(stream=True)
        assert proxy.used()["tokens"] > 32_000


@pytest.mark.parametrize("status", [408, 504, 524])
def test_a_gateway_that_did_not_wait_counts_as_the_longest_answer(serving, status):
    with serving(failure(status)) as proxy:
        assert proxy.ask()[0] == status
        assert proxy.used()["tokens"] > 32_000


def test_fields_that_cost_more_or_choose_another_model_stay_behind(serving):
    search = {"type": "web_search", "max_uses": 9}
    own = {"type": "function", "function": {"name": "look", "parameters": {}}}
    more = {"models": ["dear"], "plugins": [{"id": "web"}], "n": 64, "fallbacks": ["dear"]}
    more |= {"service_tier": "priority", "extra_body": {"model": "dear"}, "top_k": 3}
    with serving(plain(1, 1), budget={"tokens": 10_000}) as proxy:
        assert proxy.ask(tools=[search, own], temperature=0, **more)[0] == 200
        assert proxy.ask(tools=[search])[0] == 200
        assert proxy.ask(tools=7)[0] == 400
        first, second = proxy.server.bodies
    assert first == {
        "model": "small", "messages": [], "tools": [own], "temperature": 0, "top_k": 3
    }  # fmt: skip
    assert second == {"model": "small", "messages": []}


def test_figures_that_are_none_and_an_answer_that_never_came(serving):
    none = document({"id": "c", "choices": [], "usage": {"input_tokens": 5}})
    long = [{"role": "user", "content": "x" * 400}]
    with serving(none, budget={"tokens": 10_000}) as proxy:
        assert proxy.ask(messages=long)[0] == 200
        assert proxy.used()["tokens"] > 100
        assert proxy.config.with_name("spent.db").stat().st_mode & 0o077 == 0
    with socketserver.TCPServer(("127.0.0.1", 0), Silent) as silent:
        threading.Thread(target=silent.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{silent.server_address[1]}/v1"
        with serving(none, upstream=url, budget={"tokens": 10_000}) as proxy:
            assert proxy.ask("bob-token", messages=long)[0] == 502
            assert proxy.used("bob-token")["tokens"] > 32_000  # the provider may have worked for it
        silent.shutdown()


def test_counts_survive_a_kill(serving):
    def hang(exchange):
        exchange.server.ending.wait(30)

    with serving(plain(30, 5), Reply([hang])) as proxy:
        assert proxy.ask()[0] == 200

        def ask():
            with contextlib.suppress(OSError):
                proxy.ask()

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        assert until(lambda: len(proxy.server.exchanges) == 2)
        proxy.stop(signal.SIGKILL)
        proxy.start()
        assert proxy.used()["tokens"] > 35 + 1000  # what it was at counts by its estimate
        assert proxy.ask()[0] == 402
        asking.join(10)


class Together:
    """A reply that takes a moment, and how many of them are given at a time."""

    def __init__(self):
        self.now, self.most, self._lock = 0, 0, threading.Lock()
        self.reply = Reply([self.begin, pause(0.2), self.end, *plain(30, 5).steps], length=False)

    def begin(self, _):
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def end(self, _):
        with self._lock:
            self.now -= 1


def side_by_side(proxy, count):
    """Return the states of requests that are made at the same time."""
    found = []
    asking = [threading.Thread(target=lambda: found.append(proxy.ask()[0])) for _ in range(count)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    return sorted(found)


def test_requests_side_by_side_do_not_pass_the_budget_together(serving):
    with serving((together := Together()).reply) as proxy:
        # Of 35 tokens each, three; none is refused while it is not known what others will use.
        assert side_by_side(proxy, 12) == [200] * 3 + [402] * 9
        assert (len(proxy.server.exchanges), together.most) == (3, 1)


def test_no_more_than_eight_of_a_users_are_under_way(serving):
    with serving((together := Together()).reply, budget={"tokens": 1_000_000}) as proxy:
        assert side_by_side(proxy, 20) == [200] * 20
        assert 1 < together.most <= 8 and proxy.used()["tokens"] == 20 * 35


def test_who_leaves_while_it_waits_pays_nothing(serving):
    slow = Reply([pause(1.5), *plain(30, 5).steps], length=False)
    with serving(slow) as proxy:
        asking = threading.Thread(target=proxy.ask)
        asking.start()
        assert until(lambda: proxy.server.exchanges)
        with pytest.raises(TimeoutError):
            proxy.ask(timeout=0.3)
        asking.join()
        assert proxy.ask()[0] == 200
        assert len(proxy.server.exchanges) == 2 and proxy.used()["tokens"] == 70


@pytest.mark.parametrize(
    ("token", "status", "said"),
    [
        ("nobody", 401, "does not accept this token"),
        ("eve-token", 403, "access:services"),
        ("service-token", 403, "access:services"),
        ("", 401, "no hub token"),
    ],
)
def test_who_may_not_come(serving, token, status, said):
    with serving(plain(1, 1)) as proxy:
        found, body = proxy.ask(token)
        assert found == status and said in json.loads(body)["error"]["message"]
        assert not proxy.server.exchanges


def test_other_models_other_ways_and_what_is_no_request(serving, hub):
    with serving(plain(1, 1), plain(1, 1)) as proxy:
        assert json.loads(proxy.ask(path="v1/models")[1])["data"][0]["id"] == "small"
        status, body = proxy.ask(model="large")
        assert status == 404 and "the models are: small" in body
        assert proxy.ask(path="v1/files")[0] == 404
        assert not proxy.server.exchanges
        assert proxy.ask()[0] == 200
        assert hub.asked.count("ada-token") == 1  # the hub is asked once a minute


def test_a_provider_that_breaks_off_or_is_away(serving, tmp_path):
    broken = Reply([event(text_chunks("Hello.")[1]), pause(0.3), disconnect])
    with serving(broken, says("Whole."), budget={"tokens": 100_000}) as proxy:
        with pytest.raises(http.client.IncompleteRead) as cut:
            proxy.ask(stream=True)
        assert b"Hell" in cut.value.partial
        assert until(lambda: 32_000 < proxy.used()["tokens"] < 33_000)
        proxy.server.exchanges.clear()
        options = {"base_url": proxy.base, "api_key": "ada-token", "home": tmp_path / "home"}
        with Hermes("small", tools=[], **options) as hermes:  # which asks again
            assert hermes.ask("hi").text == "Whole."
    with serving(broken, upstream="http://127.0.0.1:9/v1") as proxy:
        status, body = proxy.ask("bob-token")
        assert status == 502 and "cannot be reached" in body
        assert proxy.used("bob-token")["tokens"] == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"budget": {"tokns": 1}},
        {"budget": {"dollars": 1}, "models": {"m": {}}},
        {"key_file": "/nowhere"},
        {"more": 1},
        {"models": None},
        {"budget": {"tokens": "1e6"}},
        {"users": {"ada": {"dollars": "5"}}, "models": {"m": {"input": 1, "output": 1}}},
        {"models": {"m": {"input": "0.25", "output": 1}}},
    ],
)
def test_a_configuration_that_cannot_be_meant(tmp_path, wrong):
    (tmp_path / "key").write_text("k")
    rules = {"upstream": "u", "key_file": f"{tmp_path}/key", "ledger": "l", "models": {"m": None}}
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(rules))
    assert Rules.read(tmp_path / "p.yaml").key == "k"
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(rules | wrong))
    with pytest.raises(ConfigError, match=r"\.yaml: "):
        Rules.read(tmp_path / "p.yaml")


def test_the_configuration_of_the_guide_is_one(tmp_path):
    page = (Path(__file__).parents[3] / "docs/howto/jupyterhub.md").read_text("utf-8")
    text = page.partition("<!-- file: proxy.yaml -->\n```text\n")[2].partition("```")[0]
    (tmp_path / "key").write_text("k\n")
    (tmp_path / "p.yaml").write_text(text.replace("/etc/jupyterhub/model.key", f"{tmp_path}/key"))
    rules = Rules.read(tmp_path / "p.yaml")
    assert rules.key == "k" and rules.users["ada"].dollars == 20 and "qwen3-coder" in rules.models
    assert rules.models["gpt-5-mini"].dollars(1_000_000, 1_000_000, 500_000) == pytest.approx(
        2.1375
    )
