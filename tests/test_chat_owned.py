"""A tokenizer of one's own: what others do with theirs, on whatever thread, changes no token."""

import contextlib
import copy
import json
import threading

import pytest
from chat_families import family_tokenizer

from agentlab.agents import ModelAgent
from agentlab.chat import ChatFormat, Demonstrator, OwnTokenizer, private_copy, read_conversation
from agentlab.environments import TaskEnvironment
from agentlab.errors import ConfigError
from agentlab.inference.scripted import ScriptedEngine
from agentlab.models import save_model, tiny_model
from agentlab.rollout import RolloutConfig, RolloutOrchestrator, evaluate
from agentlab.rollout.conversations import ConversationFeed, demonstration

LONG = "An observation that is much longer than sixteen tokens. " * 4
TALK = [{"role": "system", "content": "S"}, {"role": "user", "content": LONG}]


def cut(tokenizer):
    tokenizer(LONG, truncation=True, max_length=16)


def pad(tokenizer):
    tokenizer([LONG, "short"], padding="max_length", max_length=400)


def pad_left(tokenizer):
    tokenizer.padding_side = "left"
    tokenizer([LONG, "short"], padding=True)


def cut_left(tokenizer):
    tokenizer.truncation_side = "left"
    tokenizer.encode(LONG, truncation=True, max_length=3)


def add_tokens(tokenizer):
    tokenizer.add_tokens(["observation", "longer", "sixteen"])


def add_special_tokens(tokenizer):
    tokenizer.add_special_tokens({"additional_special_tokens": ["An", "tokens"]})


def change_template(tokenizer):
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"


def change_backend(tokenizer):
    tokenizer.backend_tokenizer.enable_truncation(max_length=5)
    tokenizer.backend_tokenizer.enable_padding(length=300)
    tokenizer.clean_up_tokenization_spaces = True


def fresh_tokenizer(family):
    """One of this test's own, to be misused."""
    return copy.deepcopy(family_tokenizer(family))


HOSTILE = (cut, pad, pad_left, cut_left, add_tokens, add_special_tokens, change_template, change_backend)


@contextlib.contextmanager
def used_by_others(tokenizer):
    """While the body runs, 8 threads do to a tokenizer what its users may do."""
    over = threading.Event()
    begun = threading.Barrier(len(HOSTILE) + 1)

    def main(deed):
        begun.wait()
        while not over.is_set():
            with contextlib.suppress(RuntimeError):  # "Already borrowed": they are in each other's way
                deed(tokenizer)

    threads = [threading.Thread(target=main, args=(deed,)) for deed in HOSTILE]
    for thread in threads:
        thread.start()
    begun.wait()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("family", ["qwen3", "llama3", "gemma3"])
def test_a_chat_format_gives_the_same_tokens_while_eight_threads_misuse_the_tokenizer(family):
    tokenizer = fresh_tokenizer(family)
    chat = ChatFormat(tokenizer)

    def everything(number):
        said = chat.turn(f"{LONG} {number}")
        news = [{"role": "user", "content": f"{number}. {LONG}"}]
        prompt = chat.start([*TALK, {"role": "user", "content": str(number)}] if family == "qwen3" else TALK[1:])
        return prompt, said, chat.extend(said, news), chat.decode(said), chat.stop_token_ids

    calm = [everything(number) for number in range(60)]
    fresh = ChatFormat(tokenizer)
    with used_by_others(tokenizer):
        chat = fresh  # whose caches are empty
        assert [everything(number) for number in range(60)] == calm


@pytest.mark.parametrize("deed", [cut, pad, pad_left, cut_left, change_backend])
def test_nothing_that_was_done_to_a_tokenizer_before_cuts_or_pads_a_copy(deed):
    tokenizer, calm = fresh_tokenizer("llama3"), OwnTokenizer(fresh_tokenizer("llama3"))
    deed(tokenizer)
    own = OwnTokenizer(tokenizer)
    assert own.encode(LONG) == calm.encode(LONG)
    assert own.decode(own.encode(LONG)) == calm.decode(calm.encode(LONG))


def test_no_prompt_of_a_rollout_is_cut_by_a_reward_that_calls_the_models_tokenizer():
    tokenizer = fresh_tokenizer("qwen3")

    def reward(task, answer):
        for _ in range(20):
            with contextlib.suppress(RuntimeError):  # of two rewards at once
                tokenizer(answer + LONG, truncation=True, max_length=16)
        return 0.0

    def prompts(reward_fn):
        engine = ScriptedEngine(LONG, tokenizer)
        options = {"reward_fn": reward_fn, "max_turns": 2, "feedback": LONG}
        config = RolloutConfig(group_size=4, max_concurrency=8, max_tokens=400)
        tasks = [{"id": str(number), "prompt": f"{number} {LONG}"} for number in range(16)]
        orchestrator = RolloutOrchestrator(
            engine, agent_class=ModelAgent, env_class=TaskEnvironment, env_kwargs=options, config=config
        )
        assert all(t.failure is None for group in orchestrator.iterate(tasks) for t in group.trajectories)
        return {request.id: request.prompt for request in engine.requests}

    assert prompts(reward) == prompts(lambda task, answer: 0.0)


def test_demonstrations_are_encoded_whole_while_others_use_the_tokenizer():
    tokenizer = fresh_tokenizer("qwen3")
    talk = read_conversation([*TALK, {"role": "assistant", "content": LONG}], 0)
    calm = demonstration(Demonstrator(ChatFormat(tokenizer)), talk, "0:a")
    chat = ChatFormat(tokenizer)
    feed = ConversationFeed(chat, per_step=1, max_tokens=2000)
    with used_by_others(tokenizer):
        for _ in range(20):
            assert demonstration(Demonstrator(feed.chat), talk, "0:a") == calm


def test_an_engine_finds_stop_strings_whatever_became_of_the_tokenizer():
    tokenizer = fresh_tokenizer("qwen3")
    engine, chat = ScriptedEngine("one two STOP three", tokenizer), ChatFormat(tokenizer)
    tokenizer.decode = lambda *_, **__: "nothing"
    tokenizer.backend_tokenizer.enable_truncation(max_length=2)
    found = evaluate(
        engine,
        [{"prompt": "Go."}],
        agent_class=ModelAgent,
        env_class=TaskEnvironment,
        env_kwargs={"reward_fn": lambda task, answer: float(answer == "one two STOP")},
        config=RolloutConfig(stop=("STOP",)),
        chat=chat,
        progress=False,
    )
    assert found.success == 1.0


def test_a_saved_tokenizer_keeps_no_truncation_of_a_call_that_somebody_made(tmp_path):
    model = tiny_model()
    change_backend(model.tokenizer)
    save_model(model, tmp_path / "model")
    saved = json.loads((tmp_path / "model" / "tokenizer.json").read_text())
    assert saved["truncation"] is None and saved["padding"] is None


def test_a_private_copy_cannot_be_changed_and_names_what_to_use_instead():
    own = ChatFormat(fresh_tokenizer("qwen3")).tokenizer
    assert own.eos_token_id in own.encode("<|im_end|>")
    own.all_special_tokens.clear()
    assert own.all_special_tokens
    for misuse in (cut, pad, add_tokens, change_template):
        with pytest.raises((AttributeError, TypeError)):
            misuse(own)
    with pytest.raises(AttributeError, match=r"model\.tokenizer"):
        own.add_special_tokens({})
    assert OwnTokenizer(own).encode(LONG) == own.encode(LONG)


def test_what_a_user_hangs_on_a_tokenizer_does_not_keep_it_from_being_copied_but_its_tables_must_be():
    tokenizer = fresh_tokenizer("qwen3")
    tokenizer.held = threading.Lock()
    own = private_copy(tokenizer)
    change_backend(tokenizer)
    assert own.encode(LONG) == fresh_tokenizer("qwen3").encode(LONG)
    tokenizer._tokenizer = threading.Lock()
    with pytest.raises(ConfigError, match="deepcopy"):
        private_copy(tokenizer)


def test_a_tokenizer_of_a_users_own_that_cannot_be_copied_whole_is_copied_at_its_top():
    class Own:
        def __init__(self):
            self.lock = threading.Lock()

        def encode(self, text, *, add_special_tokens=True):
            return list(text.encode())

    tokenizer = Own()
    own = OwnTokenizer(tokenizer)
    tokenizer.encode = lambda *_, **__: []
    assert own.encode("ab") == [97, 98]
